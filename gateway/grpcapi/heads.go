package grpcapi

import (
	"bytes"

	"github.com/sluice-serve/sluice/infer"
)

// head is a message up to its raw contents, and what it says. A client sends the same one
// again and again but for the id, so a message that begins with a known head is not read
// field by field. Equal bytes that end where a field ends say the same, whatever follows; only
// heads without parameters and typed contents are known, and only raw contents may follow.
type head struct {
	before     []byte // the head, up to the length of the id
	after      []byte // what is behind the id
	identified bool   // there is an id, of less than 128 bytes
	used       bool   // since it came to be known

	model, version  string
	inputs          [2]infer.Tensor // without shapes and data
	ranks           [2]int          // how many of dims each has
	dims            [8]int64
	outputs         [2]string
	inCount, outCnt int
}

// knownHeads is how many a decoder knows, maxKnown the size of one, and calmAfter how many
// messages pass before another takes the place of one that was of no use.
const (
	knownHeads = 4
	maxKnown   = 256
	calmAfter  = 32
)

// heads are those that a decoder knows.
type heads struct {
	known [knownHeads]head
	last  int // the one that was met last
	next  int // the one that gives way next
	calm  int // messages that are still to pass
}

// find reads a message whose head is known. False: it is not, and nothing was read.
func (d *decoder) find(c *Call, b []byte) bool {
	for i := range d.heads.known {
		k := &d.heads.known[(d.heads.last+i)%knownHeads]
		if k.inCount == 0 {
			continue
		}
		id, rest, ok := k.split(b)
		if !ok {
			continue
		}
		name, ok := text(id)
		if !ok || !d.rawsOnly(rest) {
			return false // the reader says what is wrong
		}
		d.heads.last = (d.heads.last + i) % knownHeads
		k.used = true
		k.say(c, name)
		for range k.inCount {
			d.contents = append(d.contents, contents{})
		}
		return true
	}
	return false
}

// split cuts a message that begins with the head.
func (k *head) split(b []byte) (id, rest []byte, ok bool) {
	if rest, ok = bytes.CutPrefix(b, k.before); !ok || !k.identified {
		return nil, rest, ok
	}
	if len(rest) == 0 || rest[0] >= 0x80 || int(rest[0]) >= len(rest) {
		return nil, nil, false
	}
	id, rest = rest[1:1+rest[0]], rest[1+rest[0]:]
	rest, ok = bytes.CutPrefix(rest, k.after)
	return id, rest, ok
}

// rawsOnly reads raw contents. False: there is something else, and nothing was read.
func (d *decoder) rawsOnly(b []byte) bool {
	had := len(d.raws)
	for cur, f := (cursor{b}), (field{}); len(cur.b) > 0; {
		if !cur.next(&f) || !f.isBytes(7) || len(d.raws) == maxInputs {
			clear(d.raws[had:])
			d.raws = d.raws[:had]
			return false
		}
		d.raws = append(d.raws, f.val)
	}
	return true
}

// say fills in a request.
func (k *head) say(c *Call, id string) {
	req := &c.Request
	req.Model, req.Version, req.ID = k.model, k.version, id
	req.Inputs, req.Outputs = c.inputs[:k.inCount], c.outputs[:k.outCnt]
	c.emptyFinal = false
	copy(req.Inputs, k.inputs[:])
	first := len(c.shapes)
	c.shapes = append(c.shapes, k.dims[:k.ranks[0]+k.ranks[1]]...)
	for i := range req.Inputs {
		end := first + k.ranks[i]
		req.Inputs[i].Shape = c.shapes[first:end:end]
		first = end
	}
	for i := range req.Outputs {
		req.Outputs[i] = infer.RequestedOutput{Name: k.outputs[i]}
	}
}

// layout is where the parts of a message lie, as they are read.
type layout struct {
	odd       bool // its head can't be known
	idAt      int  // the length of its id; 0: it has none
	idEnd     int
	rawsBegin int // 0: it has none
}

// note takes one field, which begins at a byte of the message and ends before another;
// params is whether it had parameters.
func (l *layout) note(f *field, begin, end int, params bool) {
	switch {
	case f.isBytes(7):
		if l.rawsBegin == 0 {
			l.rawsBegin = begin
		}
		return
	case l.rawsBegin > 0 || params:
		l.odd = true
	case f.isBytes(3):
		l.odd = l.odd || l.idAt > 0 || end-begin != 2+len(f.val) || len(f.val) >= 0x80
		l.idAt, l.idEnd = begin+1, end
	case f.isBytes(1), f.isBytes(2), f.isBytes(5), f.isBytes(6):
	default:
		l.odd = true
	}
}

// learn makes the head of a message that was read a known one.
func (d *decoder) learn(c *Call, b []byte, l layout) {
	req := &c.Request
	if l.odd || l.rawsBegin == 0 || l.rawsBegin > maxKnown || len(req.Inputs) == 0 || len(req.Inputs) > 2 || len(req.Outputs) > 2 || len(c.uses) > 0 {
		return
	}
	if d.heads.calm > 0 {
		d.heads.calm--
		return
	}
	k := &d.heads.known[d.heads.next]
	if k.inCount > 0 && !k.used {
		d.heads.calm = calmAfter
	}
	fresh := head{before: k.before[:0], after: k.after[:0], model: req.Model, version: req.Version, inCount: len(req.Inputs), outCnt: len(req.Outputs)}
	n := 0
	for i, t := range req.Inputs {
		if d.contents[i].set || n+len(t.Shape) > len(fresh.dims) {
			return
		}
		fresh.inputs[i] = infer.Tensor{Name: t.Name, Datatype: t.Datatype}
		fresh.ranks[i] = copy(fresh.dims[n:], t.Shape)
		n += len(t.Shape)
	}
	for i := range req.Outputs {
		fresh.outputs[i] = req.Outputs[i].Name
	}
	if fresh.identified = l.idAt > 0; fresh.identified {
		fresh.before, fresh.after = append(fresh.before, b[:l.idAt]...), append(fresh.after, b[l.idEnd:l.rawsBegin]...)
	} else {
		fresh.before = append(fresh.before, b[:l.rawsBegin]...)
	}
	*k = fresh
	d.heads.last, d.heads.next = d.heads.next, (d.heads.next+1)%knownHeads
}
