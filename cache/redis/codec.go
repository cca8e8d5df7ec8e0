package redis

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"
	"unicode/utf8"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// The form of a value: magic, the key that it is for, when it was made (Unix
// milliseconds), outputs, parameters, and a checksum over all that: the first half of
// SHA-256. Numbers are little-endian; every list begins with its count, every text with
// its length.
const (
	magic    = "sluice/1"
	sumBytes = 16
	// maxValue bounds a value: larger answers are not shared.
	maxValue = 32 << 20
	maxList  = 1 << 16
	// maxBytes is more than any value's length.
	maxBytes = maxValue + 1<<20
	// maxAhead is how far ahead another gateway's clock may be.
	maxAhead = time.Hour
)

// encode writes e for the key; nil: it is too large to share.
func encode(key *[32]byte, e *cache.Entry, stored time.Time) []byte {
	if e.Size() > maxValue {
		return nil
	}
	b := make([]byte, 0, e.Size()+128)
	b = append(append(b, magic...), key[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(stored.UnixMilli()))
	b = appendLen(b, len(e.Outputs))
	for i := range e.Outputs {
		o := &e.Outputs[i]
		b = append(appendText(b, o.Name), byte(o.Datatype))
		b = appendLen(b, len(o.Shape))
		b = cache.AppendShape(b, o.Shape)
		b = append(appendLen(b, len(o.Data)), o.Data...)
	}
	b = appendLen(b, len(e.Params))
	for i := range e.Params {
		v := &e.Params[i].Value
		b = append(appendText(b, e.Params[i].Name), byte(v.Kind))
		var text bool
		if b, text = cache.AppendScalar(b, v); text {
			b = appendText(b, v.Str)
		}
	}
	return sign(b)
}

// sign appends the checksum.
func sign(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(b, sum[:sumBytes]...)
}

func appendLen(b []byte, n int) []byte { return binary.LittleEndian.AppendUint32(b, uint32(n)) }

func appendText(b []byte, s string) []byte { return append(appendLen(b, len(s)), s...) }

// decode reads a value for the key; false: it is not one of ours, or not whole. The
// outputs' data are the value's memory.
func decode(b []byte, key *[32]byte) (resp infer.Response, stored time.Time, ok bool) {
	if len(b) < len(magic)+32+sumBytes || string(b[:len(magic)]) != magic || string(b[len(magic):len(magic)+32]) != string(key[:]) {
		return resp, stored, false
	}
	sum := sha256.Sum256(b[:len(b)-sumBytes])
	if string(sum[:sumBytes]) != string(b[len(b)-sumBytes:]) {
		return resp, stored, false
	}
	r := reader{b: b[len(magic)+32 : len(b)-sumBytes]}
	if stored = time.UnixMilli(int64(r.word())); time.Until(stored) > maxAhead {
		return resp, stored, false
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		o := infer.Tensor{Name: r.str(), Datatype: infer.Datatype(r.byte())}
		for d := r.count(); d > 0 && !r.bad; d-- {
			o.Shape = append(o.Shape, int64(r.word()))
		}
		o.Data = r.text()
		resp.Outputs = append(resp.Outputs, o)
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		resp.Params = append(resp.Params, r.param())
	}
	return resp, stored, !r.bad && len(r.b) == 0
}

// reader reads what encode wrote; bad says that it ended early.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	got := r.b[:n:n]
	r.b = r.b[n:]
	return got
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) word() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) length() int {
	if b := r.take(4); b != nil {
		return int(binary.LittleEndian.Uint32(b))
	}
	return 0
}

func (r *reader) count() int {
	n := r.length()
	if n > maxList {
		r.bad = true
		return 0
	}
	return n
}

func (r *reader) text() []byte { return r.take(r.length()) }

// str is a text that front ends can send: UTF-8.
func (r *reader) str() string {
	b := r.text()
	r.bad = r.bad || !utf8.Valid(b)
	return string(b)
}

func (r *reader) param() infer.Param {
	p := infer.Param{Name: r.str()}
	v := &p.Value
	switch v.Kind = infer.Kind(r.byte()); v.Kind {
	case infer.KindBool:
		v.Bool = r.byte() != 0
	case infer.KindInt64, infer.KindUint64:
		v.Int = int64(r.word())
	case infer.KindDouble:
		v.Double = math.Float64frombits(r.word())
		r.bad = r.bad || math.IsNaN(v.Double) || math.IsInf(v.Double, 0) // JSON has no such number
	case infer.KindString:
		v.Str = r.str()
	default:
		r.bad = true
	}
	return p
}
