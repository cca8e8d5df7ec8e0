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

func compress(z encoding.Compressor, parts mem.BufferSlice) (mem.BufferSlice, error) {
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
	return mem.BufferSlice{mem.SliceBuffer(out.Bytes())}, nil
}

// decompress reads a message into memory of its call; call is nil for services. No
// more than the largest message is ever read, and memory grows as it comes.
func (s *Server) decompress(name string, data []byte, call Call) (*infer.Buffer, []byte, error) {
	z := encoding.GetCompressor(name)
	r, err := z.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	}
	var plain bytes.Buffer
	n, err := io.Copy(&plain, io.LimitReader(r, s.cfg.MaxMessage+1))
	if closer, ok := r.(io.Closer); ok {
		err = errors.Join(err, closer.Close())
	}
	switch {
	case n > s.cfg.MaxMessage:
		return nil, nil, status.Errorf(codes.ResourceExhausted, "grpc: message after decompression larger than max %d", s.cfg.MaxMessage)
	case err != nil:
		return nil, nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	case n == 0:
		return nil, nil, nil
	}
	var memory *infer.Buffer
	if call != nil {
		memory, err = call.Memory(n, plain.Bytes()[:min(n, peek)])
	} else {
		memory, err = s.deps.Memory.Body(n)
	}
	if err != nil {
		return nil, nil, err
	}
	dst := memory.Data[int64(len(memory.Data))-n:]
	copy(dst, plain.Bytes())
	return memory, dst, nil
}
