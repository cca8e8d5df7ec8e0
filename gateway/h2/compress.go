package h2

import (
	"bytes"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// compress makes a message of parts that pool counts.
func compress(z encoding.Compressor, parts mem.BufferSlice, pool *CountedPool) (mem.BufferSlice, error) {
	var out bytes.Buffer
	w, err := z.Compress(&out)
	if err == nil {
		for _, p := range parts {
			if _, err = w.Write(p.ReadOnlyData()); err != nil {
				break
			}
		}
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: error while compressing: %v", err)
	}
	b, err := pool.Buffer(out.Bytes())
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{b}, nil
}

// decompress reads a message into memory of its call; call is nil for services. No
// more than the largest message is ever read, and it is read into counted memory, which
// grows as it comes, so that small messages which decompress to large ones are refused
// like large ones.
func (s *Server) decompress(name string, data []byte, call Call) (*infer.Buffer, []byte, error) {
	z := encoding.GetCompressor(name)
	r, err := z.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, nil, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	}
	plain, n, err := s.readAll(r, min(max(4*int64(len(data)), peek), s.cfg.MaxMessage))
	if closer, ok := r.(io.Closer); ok {
		if closed := closer.Close(); err == nil && closed != nil {
			err = status.Errorf(codes.Internal, "grpc: failed to read decompressed data: %v", closed)
		}
	}
	if err != nil || n == 0 {
		plain.Release()
		return nil, nil, err
	}
	if call == nil {
		return plain, plain.Data[:n], nil
	}
	plain, text := s.aside(plain, plain.Data[:n], n)
	defer plain.Release()
	memory, err := call.Memory(n, text[:min(n, peek)])
	if err != nil {
		return nil, nil, err
	}
	dst := memory.Data[int64(len(memory.Data))-n:]
	copy(dst, text)
	return memory, dst, nil
}

// readAll reads r to its end into memory that begins with size bytes. The memory is the
// caller's also with an error; it may be nil then.
func (s *Server) readAll(r io.Reader, size int64) (memory *infer.Buffer, n int64, err error) {
	if memory, err = s.deps.Memory.Body(size); err != nil {
		return nil, 0, err
	}
	for {
		var got int
		if n < int64(len(memory.Data)) {
			got, err = r.Read(memory.Data[n:])
		} else { // is it the end?
			var one [1]byte
			if got, err = r.Read(one[:]); got > 0 {
				if n >= s.cfg.MaxMessage {
					return memory, n, status.Errorf(codes.ResourceExhausted, "grpc: received message after decompression larger than max %d", s.cfg.MaxMessage)
				}
				size := min(4*n, s.cfg.MaxMessage)
				memory, _ = s.aside(memory, memory.Data, size)
				larger, refused := s.deps.Memory.Body(size)
				if refused != nil {
					return memory, n, refused
				}
				copy(larger.Data, memory.Data)
				memory.Release()
				memory = larger
				memory.Data[n] = one[0]
			}
		}
		n += int64(got)
		switch {
		case err == io.EOF:
			return memory, n, nil
		case err != nil:
			return memory, n, status.Errorf(codes.Internal, "grpc: failed to read decompressed data: %v", err)
		}
	}
}
