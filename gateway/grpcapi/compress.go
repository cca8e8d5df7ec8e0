package grpcapi

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// compressor is one of gRPC's message encodings.
type compressor struct {
	name    string
	writers sync.Pool // of resetWriter
	readers sync.Pool // of resetReader
	writer  func(io.Writer) (resetWriter, error)
	reader  func(io.Reader) (io.ReadCloser, error)
	reset   func(io.ReadCloser, io.Reader) error
}

type resetWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

// Name is the encoding's name on the wire.
func (c *compressor) Name() string { return c.name }

// Compress writes to w.
func (c *compressor) Compress(w io.Writer) (io.WriteCloser, error) {
	if z, ok := c.writers.Get().(resetWriter); ok {
		z.Reset(w)
		return &pooledWriter{z, c}, nil
	}
	z, err := c.writer(w)
	if err != nil {
		return nil, err
	}
	return &pooledWriter{z, c}, nil
}

type pooledWriter struct {
	resetWriter
	in *compressor
}

// Close ends the stream and keeps the compressor for the next message.
func (w *pooledWriter) Close() error {
	err := w.resetWriter.Close()
	w.in.writers.Put(w.resetWriter)
	return err
}

// Decompress reads from r; grpc-go bounds how much.
func (c *compressor) Decompress(r io.Reader) (io.Reader, error) {
	if z, ok := c.readers.Get().(io.ReadCloser); ok {
		if err := c.reset(z, r); err != nil {
			c.readers.Put(z)
			return nil, err
		}
		return &pooledReader{z: z, in: c}, nil
	}
	z, err := c.reader(r)
	if err != nil {
		return nil, err
	}
	return &pooledReader{z: z, in: c}, nil
}

type pooledReader struct {
	z  io.ReadCloser // nil once it went back
	in *compressor
}

// Read keeps the decompressor for the next message once it has read this one.
func (r *pooledReader) Read(p []byte) (int, error) {
	if r.z == nil {
		return 0, io.EOF
	}
	n, err := r.z.Read(p)
	if err == io.EOF {
		return n, cmp.Or(r.Close(), io.EOF)
	}
	return n, err
}

// Close keeps the decompressor too; grpc-go calls it also when it gives up in between.
func (r *pooledReader) Close() error {
	if r.z == nil {
		return nil
	}
	err := r.z.Close()
	r.in.readers.Put(r.z)
	r.z = nil
	return err
}

// compressionLevel is --grpc-infer-response-compression-level as a level of deflate;
// false is an unknown one. "none" still needs a level, though nothing is answered by it.
func compressionLevel(name string) (int, bool) {
	switch name {
	case "", "none", "medium":
		return gzip.DefaultCompression, true
	case "low":
		return gzip.BestSpeed, true
	case "high":
		return gzip.BestCompression, true
	}
	return 0, false
}

// registered guards grpc-go's registry of encodings, which is one for the process and
// may not be written while anything reads it: the first server settles it.
var registered sync.Once

// RegisterEncodings teaches grpc-go gzip and deflate, the two encodings that gRPC's C
// core sends; its deflate is zlib's format. The registry belongs to the process, so
// the first call, before any server or client runs, settles the level for all.
// NewServer calls it.
func RegisterEncodings(level string) {
	registered.Do(func() {
		l, ok := compressionLevel(level)
		if !ok {
			l = gzip.DefaultCompression
		}
		encoding.RegisterCompressor(&compressor{name: "gzip",
			writer: func(w io.Writer) (resetWriter, error) { return gzip.NewWriterLevel(w, l) },
			reader: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
			reset:  func(z io.ReadCloser, r io.Reader) error { return z.(*gzip.Reader).Reset(r) }})
		encoding.RegisterCompressor(&compressor{name: "deflate",
			writer: func(w io.Writer) (resetWriter, error) { return zlib.NewWriterLevel(w, l) },
			reader: zlib.NewReader,
			reset:  func(z io.ReadCloser, r io.Reader) error { return z.(zlib.Resetter).Reset(r, nil) }})
	})
}

// chooseCompression says how the answer is compressed: as the level asks where the
// client takes it, else not at all, as in the original; grpc-go by itself would answer
// in the request's encoding.
func (s *Service) chooseCompression(ctx context.Context) {
	if st, ok := h2.FromContext(ctx); ok {
		for _, name := range [...]string{"gzip", "deflate"} {
			if s.compress && st.Accepts(name) {
				st.Compress(name)
				return
			}
		}
		return
	}
	if !s.compress {
		stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
		if ok && stream.RecvCompress() != "" {
			s.setCompression(ctx, encoding.Identity)
		}
		return
	}
	accepted, err := grpc.ClientSupportedCompressors(ctx)
	if err != nil {
		return // a transport that doesn't compress
	}
	for _, name := range [...]string{"gzip", "deflate"} {
		if slices.Contains(accepted, name) {
			s.setCompression(ctx, name)
			return
		}
	}
	s.setCompression(ctx, encoding.Identity)
}

func (s *Service) setCompression(ctx context.Context, name string) {
	if err := grpc.SetSendCompressor(ctx, name); err != nil && s.failure != nil {
		s.failure(ctx, "ModelInfer", nil, infer.Errorf(infer.Internal, "response compression %q: %w", name, err))
	}
}
