package httpapi

import (
	"sync"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// Source is the body of a large response, which is made as it is written.
type Source interface {
	// Next gives the next piece, which is valid until it is called again; an empty one is the end. It does not block.
	Next() []byte
	// held is how many bytes of heap memory it takes while it lasts.
	held() int64
	// close gives back what it holds. Next is not called any more.
	close()
}

const (
	// pieceSize is about the size of a Source's pieces.
	pieceSize = 64 << 10
	// largeBody is the size from which a body has a Source: of tensors that are written as JSON, or of what is
	// compressed. Smaller ones are made whole, and have a Content-Length.
	largeBody = 256 << 10
)

// pieceBuffers are *[]byte with room for a piece.
var pieceBuffers = sync.Pool{New: func() any { b := make([]byte, 0, pieceSize+1<<10); return &b }}

// jsonSource is the JSON text of a response whose outputs are all written as JSON.
type jsonSource struct {
	head    []byte // what stands before the outputs, until it was written
	outputs []infer.Tensor
	next    int // of outputs
	within  bool
	data    json.TensorWriter // of the output before next, where within is set
	ended   bool
	piece   *[]byte
}

// newJSONSource is the text behind head. The outputs were checked; they and head must not change before it is closed.
func newJSONSource(head []byte, outputs []infer.Tensor) *jsonSource {
	piece, _ := pieceBuffers.Get().(*[]byte) // the pool has nothing else
	return &jsonSource{head: head, outputs: outputs, piece: piece}
}

// Next implements Source.
func (s *jsonSource) Next() []byte {
	b := append((*s.piece)[:0], s.head...)
	s.head = nil
	for len(b) < pieceSize && !s.ended {
		switch {
		case s.within:
			if b, s.within = s.data.Append(b, pieceSize); !s.within {
				b = append(b, '}')
			}
		case s.next == len(s.outputs):
			b = append(b, ']', '}')
			s.ended = true
		default:
			b = s.begin(b)
		}
	}
	*s.piece = b[:0]
	return b
}

// begin begins the next output.
func (s *jsonSource) begin(b []byte) []byte {
	o := &s.outputs[s.next]
	if s.next > 0 {
		b = append(b, ',')
	}
	s.next++
	b = appendTensorHead(b, o)
	if !o.Place.IsZero() { // the client has it
		return append(b, '}')
	}
	s.within, s.data = true, json.NewTensorWriter(o.Datatype, o.Data)
	return append(b, `,"data":`...)
}

func (s *jsonSource) held() int64 { return int64(cap(*s.piece)) }

func (s *jsonSource) close() {
	if cap(*s.piece) <= 2*pieceSize {
		pieceBuffers.Put(s.piece)
	}
	s.piece, s.outputs = nil, nil
}

// chunkSource is a body that is there, in pieces.
type chunkSource struct{ chunks [][]byte }

// Next implements Source.
func (s *chunkSource) Next() []byte {
	for len(s.chunks) > 0 {
		c := s.chunks[0]
		n := min(len(c), pieceSize)
		if s.chunks[0] = c[n:]; len(s.chunks[0]) == 0 {
			s.chunks = s.chunks[1:]
		}
		if n > 0 {
			return c[:n]
		}
	}
	return nil
}

func (s *chunkSource) held() int64 { return 0 }
func (s *chunkSource) close()      { s.chunks = nil }

// compressor is about what a compressor's tables and window take.
const compressorSize = 512 << 10

// compressedSource is another source, compressed.
type compressedSource struct {
	from  Source
	to    deflateWriter // nil once it has ended
	pool  *sync.Pool    // of to
	out   appender
	fault error // of to, which writes into memory and has none
}

// compressed compresses a source by an encoding.
func (d *deflaters) compressed(from Source, encoding string) (*compressedSource, error) {
	s := &compressedSource{from: from}
	var err error
	s.to, s.pool, err = d.get(encoding, &s.out)
	return s, err
}

// Next implements Source.
func (s *compressedSource) Next() []byte {
	s.out.b = s.out.b[:0]
	for s.to != nil && len(s.out.b) < pieceSize {
		piece := s.from.Next()
		if len(piece) == 0 {
			s.fault = s.to.Close()
			s.pool.Put(s.to)
			s.to = nil
			break
		}
		_, s.fault = s.to.Write(piece)
	}
	return s.out.b
}

func (s *compressedSource) held() int64 { return s.from.held() + compressorSize + 2*pieceSize }

func (s *compressedSource) close() { s.from.close() }
