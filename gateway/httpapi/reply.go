package httpapi

import (
	"github.com/sluice-serve/sluice/infer"
)

const (
	typeJSON   = "application/json"
	typeBinary = "application/octet-stream"
	typeText   = "text/plain"
)

// coalesce is the size up to which an answer is copied into one chunk.
const coalesce = 16 << 10

// keepBuffer is the most memory that a pooled buffer keeps for the next call.
const keepBuffer = 256 << 10

// Field is one header field of a reply.
type Field struct{ Name, Value string }

// Reply is one answer: what a transport writes out. The zero value is ready for Serve;
// a transport may use one again after Release.
type Reply struct {
	Status      int
	ContentType string
	// HeaderLength is Inference-Header-Content-Length; -1 where there is none.
	HeaderLength int64
	Fields       []Field // all others but Content-Length
	Chunks       [][]byte
	Length       int64 // the chunks' bytes together, for Content-Length
	// Source, where it is not nil, is the body in place of Chunks. The reply has no Content-Length then, and Length is
	// about how many bytes of memory it holds.
	Source   Source
	Streamed bool // the answer was sent by Call.Stream: nothing is left but its end

	buf    []byte // JSON, small answers, compressed bodies
	spare  []byte // the other buffer of a compressed answer
	memory *infer.Buffer
	budget *infer.Budget // of held
	held   int64         // bytes in it
	ending *ending       // is told when a Source was written; nil: nobody waits for that

	trace     *infer.Trace // of the request that was answered; nil: none
	sendStart int64        // when the reply was ready for the transport
}

// Set adds a field.
func (r *Reply) Set(name, value string) { r.Fields = append(r.Fields, Field{name, value}) }

// Release gives back the memory under the chunks once they are written.
func (r *Reply) Release() {
	if r.trace != nil {
		r.sent()
	}
	r.reset()
	if cap(r.buf) > keepBuffer {
		r.buf = nil
	}
	if cap(r.spare) > keepBuffer {
		r.spare = nil
	}
}

// reset drops what the reply holds.
func (r *Reply) reset() {
	r.Status, r.ContentType, r.HeaderLength, r.Length, r.Streamed = 0, "", -1, 0, false
	if r.Source != nil {
		r.Source.close()
		r.Source = nil
	}
	if e := r.ending; e != nil {
		r.ending = nil
		e.tell()
	}
	r.budget.Give(r.held)
	r.held = 0
	clear(r.Fields)
	clear(r.Chunks)
	r.Fields, r.Chunks = r.Fields[:0], r.Chunks[:0]
	if r.memory != nil {
		r.memory.Release()
		r.memory = nil
	}
}

// setSource makes s the body of a reply that holds so many bytes.
func (r *Reply) setSource(s Source, size int64) {
	clear(r.Chunks)
	r.Chunks, r.Source, r.Length = r.Chunks[:0], s, size
}

// hold counts in the budget what the reply takes of the heap until it is reset: the text, what was compressed, the
// buffers of a Source. Memory under the chunks is counted by who gave it. After an error, which is the budget's, the
// reply holds nothing.
func (r *Reply) hold(b *infer.Budget) error {
	n := int64(cap(r.buf))
	if r.Source != nil {
		n += r.Source.held()
	}
	if n < infer.CountFrom {
		return nil
	}
	if err := b.Take(n); err != nil {
		r.reset()
		r.buf = nil
		return err
	}
	r.budget, r.held = b, n
	return nil
}

// setBody makes b, which grew from r.buf, the whole body.
func (r *Reply) setBody(b []byte) {
	r.buf = b
	r.Chunks = append(r.Chunks[:0], b)
	r.Length = int64(len(b))
}

// empty is an answer without a body.
func (r *Reply) empty(status int) {
	r.reset()
	r.Status = status
	r.ContentType = typeText
}
