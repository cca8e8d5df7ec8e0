package httpapi

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"github.com/sluice-serve/sluice/infer"
)

// ratioFrom is how many decompressed bytes are let through before their ratio counts.
const ratioFrom = 8 << 20

// inflater decompresses a body and stops one that grows out of proportion.
type inflater struct {
	in       counter
	out      int64
	maxRatio int64
	gz       *gzip.Reader
	r        io.Reader
	encoding string
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// open begins a body. encoding is gzip or deflate.
func (f *inflater) open(body io.Reader, encoding string, maxRatio int64) error {
	f.in = counter{r: body}
	f.out, f.maxRatio, f.encoding = 0, maxRatio, encoding
	var err error
	switch {
	case encoding == "deflate":
		f.r, err = zlib.NewReader(&f.in)
	case f.gz == nil:
		f.gz, err = gzip.NewReader(&f.in)
		f.r = f.gz
	default:
		err = f.gz.Reset(&f.in)
		f.r = f.gz
	}
	if err != nil {
		f.gz = nil
		return f.fault(err)
	}
	return nil
}

// Read implements io.Reader; its errors are infer's.
func (f *inflater) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.out += int64(n)
	if f.out > ratioFrom && f.out/f.maxRatio > f.in.n {
		return 0, infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge,
			"the request body decompresses to more than %d times its size", f.maxRatio)
	}
	if err != nil && err != io.EOF {
		err = f.fault(err)
	}
	return n, err
}

func (f *inflater) fault(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, gzip.ErrChecksum) || errors.Is(err, zlib.ErrHeader) || errors.Is(err, zlib.ErrChecksum) ||
		errors.Is(err, zlib.ErrDictionary) || strings.HasPrefix(err.Error(), "flate: ") {
		return infer.Errorf(infer.InvalidArg, "the request body is no valid %s data", f.encoding)
	}
	return err // of the transport
}

// acceptEncoding chooses the answer's encoding: gzip, deflate or "". The highest q
// wins, of equals the first.
// Source: the original, which looks for these two names only; RFC 9110 for their case.
func acceptEncoding(header string) string {
	best, bestQ := "", 0.0
	for header != "" {
		var part string
		part, header, _ = strings.Cut(header, ",")
		name, attrs, _ := strings.Cut(part, ";")
		name = strings.TrimSpace(name)
		switch {
		case strings.EqualFold(name, "gzip"):
			name = "gzip"
		case strings.EqualFold(name, "deflate"):
			name = "deflate"
		default:
			continue
		}
		q := 1.0
		if v, ok := strings.CutPrefix(strings.TrimSpace(attrs), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				q = 0
			}
		}
		if q > bestQ {
			best, bestQ = name, q
		}
	}
	return best
}

// deflaters are the pooled writers of one API.
type deflaters struct {
	gzip, zlib sync.Pool
}

// deflateWriter is what gzip.Writer and zlib.Writer share.
type deflateWriter interface {
	io.WriteCloser
	Reset(w io.Writer)
}

func (d *deflaters) get(encoding string, to io.Writer) (deflateWriter, *sync.Pool, error) {
	pool := &d.gzip
	if encoding == "deflate" {
		pool = &d.zlib
	}
	if w, ok := pool.Get().(deflateWriter); ok {
		w.Reset(to)
		return w, pool, nil
	}
	if encoding == "deflate" {
		w, err := zlib.NewWriterLevel(to, zlib.BestSpeed)
		return w, pool, err
	}
	w, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	return w, pool, err
}

// appender is a writer onto a slice.
type appender struct{ b []byte }

// Write implements io.Writer.
func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

// compress replaces the reply's chunks by one that holds them compressed, and gives
// back the memory under them. A large reply is compressed as it is written.
func (d *deflaters) compress(r *Reply, encoding string) error {
	if r.Source != nil || r.Length > largeBody {
		return d.compressSource(r, encoding)
	}
	out := appender{b: r.spare[:0]}
	w, pool, err := d.get(encoding, &out)
	if err != nil {
		return err
	}
	for _, c := range r.Chunks {
		if _, err := w.Write(c); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	pool.Put(w)
	r.buf, r.spare = out.b, r.buf
	r.memory.Release()
	r.memory = nil
	clear(r.Chunks)
	r.setBody(out.b)
	r.Set("Content-Encoding", encoding)
	return nil
}

func (d *deflaters) compressSource(r *Reply, encoding string) error {
	from := r.Source
	if from == nil {
		from = &chunkSource{slices.Clone(r.Chunks)}
	}
	to, err := d.compressed(from, encoding)
	if err != nil {
		return err
	}
	r.setSource(to, r.Length)
	r.Set("Content-Encoding", encoding)
	return nil
}
