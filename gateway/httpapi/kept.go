package httpapi

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// A client sends the same JSON part with each of its requests, but for the id. Those that
// were met twice are kept with what they say, and read no more: a form depends on the
// bytes of its head alone. A kept form is read by many requests at a time, and is never
// changed: fill copies what later steps may write.

const (
	headSets = 64
	headWays = 4
	// keepHead is the most bytes of a head that is kept, keepPlain of one without a binary
	// part, whose data differ more often than not.
	keepHead  = 4 << 10
	keepPlain = 1 << 10
	// keepData is the most bytes of tensors in a head that is kept.
	keepData = 512
)

// heads are the kept ones, 256 at most: a few hundred kilobytes as a rule, and some 16 MB if
// all are as large and of as many parts as they may. Nothing
// is locked: who comes second to a place wins it. The zero value keeps nothing.
type heads struct {
	on   bool
	seed maphash.Seed
	kept [headSets][headWays]atomic.Pointer[keptHead]
	// met are hashes of heads that came once: one that never comes again costs no memory.
	once [headSets][headWays]atomic.Uint64
}

// keptHead is a head and what it says.
type keptHead struct {
	form
	all     string // form.text
	hash    uint64
	named   bool   // begins with an id, which rest is without
	rest    []byte // of the head
	answers answers
	same    infer.Form // what later steps found out of requests with the head
}

// headOf is a head in two parts.
type headOf struct {
	id    []byte
	rest  []byte
	named bool
	hash  uint64 // 0: it is not to be kept
}

// idPrefix is how the id stands where clients write it first.
const idPrefix = `{"id":"`

// cut takes the id out of a head, where it stands first and is plain. more says that a
// binary part follows.
func (h *heads) cut(head []byte, more bool) headOf {
	if !h.on || len(head) > keepHead || !more && len(head) > keepPlain {
		return headOf{}
	}
	c := headOf{rest: head}
	if len(head) > len(idPrefix) && string(head[:len(idPrefix)]) == idPrefix {
		id := head[len(idPrefix):]
		n := 0
		for n < len(id) && id[n] >= ' ' && id[n] < 0x7f && id[n] != '"' && id[n] != '\\' {
			n++
		}
		if n < len(id) && id[n] == '"' {
			c.id, c.rest, c.named = id[:n], id[n:], true
		}
	}
	c.hash = maphash.Bytes(h.seed, c.rest)
	if c.named {
		c.hash = ^c.hash
	}
	c.hash |= 1
	return c
}

// find gives the kept head that is c but for its id; nil: there is none.
func (h *heads) find(c *headOf) *keptHead {
	if c.hash == 0 {
		return nil
	}
	set := &h.kept[c.hash>>1%headSets]
	for i := range set {
		k := set[i].Load()
		if k != nil && k.hash == c.hash && k.named == c.named && bytes.Equal(k.rest, c.rest) {
			return k
		}
	}
	return nil
}

// met takes down that c was read and says f; the second time in a row it is kept.
func (h *heads) met(c *headOf, f *form) {
	if c.hash == 0 || len(f.scratch) > keepData {
		return
	}
	at, way := c.hash>>1%headSets, c.hash>>32%headWays
	if once := &h.once[at][way]; once.Load() != c.hash {
		once.Store(c.hash)
		return
	}
	set := &h.kept[at]
	for i := range set {
		if set[i].Load() == nil {
			way = uint64(i)
			break
		}
	}
	k := &keptHead{form: f.clone(), all: string(f.text), hash: c.hash, named: c.named, rest: bytes.Clone(c.rest)}
	set[way].Store(k)
}

// clone copies a form; nothing of it has room to grow.
func (d *form) clone() form {
	c := *d
	c.text, c.scratch, c.dims = slices.Clip(slices.Clone(d.text)), slices.Clip(slices.Clone(d.scratch)), slices.Clip(slices.Clone(d.dims))
	c.inputs, c.outputs = slices.Clip(slices.Clone(d.inputs)), slices.Clip(slices.Clone(d.outputs))
	c.params, c.outParams = slices.Clip(slices.Clone(d.params)), slices.Clip(slices.Clone(d.outParams))
	return c
}
