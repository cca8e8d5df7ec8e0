package drive

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

const (
	// inlineRow is the most bytes of one row that are copied under the lock: about a
	// microsecond. Larger rows get a block of their own.
	inlineRow = 16 << 10
	// slotBytes bounds a slot: larger batches take several.
	slotBytes = 1 << 20
	align     = 64
)

// placed is one input of a request, in the order of the model's inputs. One that lies in
// a client's memory has no data and is named where it lies: tensor.Place.
type placed struct {
	tensor *infer.Tensor
	layout infer.Layout
	held   bool // lies in the memory already
	slot   *slot
	start  int // in slot.block
	data   []byte
}

// slot is memory for rows of several requests with equal keys: one region for each
// input, filled in order of arrival, so that neighbours can be one segment.
type slot struct {
	block   []byte
	key     []byte
	regions []region
	rows    int // left
	users   int // requests whose rows are in use
	current bool
}

type region struct{ used, end int }

// layout places requests. It is guarded by Driver.mu but for prepare and freePrivate.
type layout struct {
	memory  schedule.Memory // nil: everything is named where it lies
	maxRows int
	current *slot
	want    int     // rows of the next slot; 0: maxRows
	spare   []*slot // for reuse, without memory
}

// maxSpare bounds the slot records kept for reuse.
const maxSpare = 16

// prepare finds the order of a request's inputs, its key, and what of it has to be
// copied. Rows too large for a slot are copied here, to a block of the request's own.
func (d *Driver) prepare(it *item) error {
	it.Key = it.Key[:0]
	batching := d.cfg.Model.MaxBatchSize > 0
	if names := d.cfg.Model.Inputs; len(names) > 0 {
		for i, name := range names {
			if t := findInput(it.req.Inputs, i, name); t != nil {
				it.addInput(t, i, d.cfg.Model.Ragged.Layout(t.Name), batching)
			}
		}
	}
	if err := d.cfg.Model.Ragged.Check(it.req); err != nil {
		return err
	}
	if len(it.inputs) != len(it.req.Inputs) {
		it.Key, it.inputs = it.Key[:0], it.inputs[:0]
		for i := range it.req.Inputs {
			t := &it.req.Inputs[i]
			it.Key = append(append(it.Key, t.Name...), 0)
			it.addInput(t, i, d.cfg.Model.Ragged.Layout(t.Name), batching)
		}
	}
	memory := d.layout.memory
	if memory == nil {
		return nil
	}
	var total int64
	for i := range it.inputs {
		p := &it.inputs[i]
		if p.held = len(p.data) == 0 || memory.Holds(p.data); !p.held {
			total += int64(len(p.data)+align-1) &^ (align - 1)
		}
	}
	it.rowSize = (total + int64(it.Rows) - 1) / int64(it.Rows)
	if it.rowSize <= inlineRow {
		return nil
	}
	it.rowSize = 0
	block, err := memory.Alloc(total)
	if err != nil {
		return infer.Refusef(infer.Unavailable, infer.ReasonMemory, "%sno memory for the request: %w", it.req.Prefix(), err)
	}
	it.private = block
	at := 0
	for i := range it.inputs {
		p := &it.inputs[i]
		if p.held {
			continue
		}
		n := copy(block[at:], p.data)
		p.data, p.held = block[at:at+n:at+n], true
		at += (n + align - 1) &^ (align - 1)
	}
	return nil
}

func findInput(inputs []infer.Tensor, i int, name string) *infer.Tensor {
	if i < len(inputs) && inputs[i].Name == name {
		return &inputs[i]
	}
	for k := range inputs {
		if inputs[k].Name == name {
			return &inputs[k]
		}
	}
	return nil
}

// maxContent is the most bytes of a shared tensor that stand in a key as they are.
const maxContent = 256

// addInput appends an input to the item and what must be equal in a batch to its key:
// the shape behind the batch dimension, of a shared tensor its content, and nothing of
// a ragged one.
func (it *item) addInput(t *infer.Tensor, index int, layout infer.Layout, batching bool) {
	it.inputs = append(it.inputs, placed{tensor: t, layout: layout, data: t.Data})
	dims := t.Shape
	switch {
	case layout == infer.Ragged:
		dims = nil
	case layout == infer.ByRow && batching && len(dims) > 0:
		dims = dims[1:]
	}
	it.Key = binary.AppendUvarint(it.Key, uint64(index))
	it.Key = append(it.Key, byte(t.Datatype), byte(len(dims)))
	for _, n := range dims {
		it.Key = binary.AppendVarint(it.Key, n)
	}
	if layout != infer.Shared {
		return
	}
	it.Key = binary.AppendUvarint(it.Key, uint64(len(t.Data)))
	if len(t.Data) <= maxContent {
		it.Key = append(it.Key, t.Data...)
		return
	}
	sum := sha256.Sum256(t.Data)
	it.Key = append(it.Key, sum[:]...)
}

// place copies a request's small inputs to a slot. alone says that the request leaves
// at once by itself, so that its slot needs no further rows.
func (l *layout) place(it *item, alone bool) error {
	if l.memory == nil || it.rowSize == 0 {
		return nil
	}
	s := l.current
	if s == nil || !s.fits(it) {
		l.close(it)
		var err error
		if s, err = l.open(it, alone); err != nil {
			return err
		}
	}
	s.rows -= it.Rows
	s.users++
	it.slot = s
	for i := range it.inputs {
		p := &it.inputs[i]
		if p.held {
			continue
		}
		r := &s.regions[i]
		p.slot, p.start = s, r.used
		n := copy(s.block[r.used:r.end], p.data)
		p.data = s.block[p.start : p.start+n : p.start+n]
		r.used += n
	}
	if s.rows == 0 {
		l.close(nil)
	}
	return nil
}

// fits says that the request's rows belong behind those that are in the slot.
func (s *slot) fits(it *item) bool {
	if s.rows < it.Rows || string(s.key) != string(it.Key) {
		return false
	}
	for i := range it.inputs {
		if p := &it.inputs[i]; !p.held && s.regions[i].end-s.regions[i].used < len(p.data) {
			return false
		}
	}
	return true
}

// open makes the slot that begins with the request.
func (l *layout) open(it *item, alone bool) (*slot, error) {
	rows := l.maxRows
	if l.want > 0 {
		rows = min(l.want, rows)
	}
	if alone {
		rows = 0
	}
	rows = max(min(rows, int(slotBytes/it.rowSize)), it.Rows)
	s := l.take()
	s.rows = rows
	size := 0
	for i := range it.inputs {
		p := &it.inputs[i]
		r := region{used: size}
		switch {
		case rows > it.Rows:
			size += regionSize(p, it.Rows, rows)
		case !p.held:
			size += len(p.data)
		}
		r.end = size
		s.regions = append(s.regions, r)
		size = (size + align - 1) &^ (align - 1)
	}
	block, err := l.memory.Alloc(int64(size))
	if err != nil {
		l.keep(s)
		return nil, err
	}
	s.block = block
	if rows > it.Rows {
		s.key = append(s.key[:0], it.Key...)
		s.current = true
		l.current = s
	}
	return s, nil
}

// regionSize is room for rows rows of an input of which have rows are there. Bytes
// elements and ragged tensors vary, so they get half as much again.
func regionSize(p *placed, have, rows int) int {
	n := len(p.data)
	if n/have > inlineRow {
		return 0 // such rows are never copied to a slot
	}
	size := (n*rows + have - 1) / have
	if p.tensor.Datatype == infer.Bytes || p.layout == infer.Ragged {
		size += size / 2
	}
	return size
}

// close ends the current slot. The next one is smaller when this one ended for a
// request of another shape, and larger when it was filled, so that mixed traffic
// doesn't reserve rows that never come.
func (l *layout) close(other *item) {
	s := l.current
	if s == nil {
		return
	}
	if other != nil && string(s.key) != string(other.Key) {
		l.want = max(1, 2*s.users)
	} else {
		l.want = 0
	}
	l.current = nil
	s.current = false
	l.freeIfUnused(s)
}

func (l *layout) freeIfUnused(s *slot) {
	if s.users == 0 && !s.current {
		l.memory.Free(s.block)
		l.keep(s)
	}
}

func (l *layout) take() *slot {
	n := len(l.spare)
	if n == 0 {
		return &slot{}
	}
	s := l.spare[n-1]
	l.spare = l.spare[:n-1]
	return s
}

// keep takes a slot back: no waiting request names it any more.
func (l *layout) keep(s *slot) {
	if len(l.spare) < maxSpare {
		*s = slot{key: s.key[:0], regions: s.regions[:0]}
		l.spare = append(l.spare, s)
	}
}

// endFill closes the current slot when its last request left with a batch and none
// waits, so that the next batch begins a slot and is one segment again.
func (l *layout) endFill(it *item) {
	if s := it.slot; s != nil && s.current && s == l.current {
		l.current = nil
		s.current = false
		l.want = 0
	}
}

// release gives the item's memory back.
func (l *layout) release(it *item) {
	if s := it.slot; s != nil {
		it.slot = nil
		s.users--
		if s.users == 0 && s == l.current {
			l.current, s.current = nil, false
		}
		l.freeIfUnused(s)
	}
	l.freePrivate(it)
}

// freePrivate gives back the block of an item that was never queued.
func (l *layout) freePrivate(it *item) {
	if block := it.private; block != nil {
		it.private = nil // first: a panic must not have it given back twice
		l.memory.Free(block)
	}
}

// reset forgets the slot that is being filled, and all that is kept for others. A slot that
// requests have rows in is given back with the last of them.
func (l *layout) reset() {
	s := l.current
	l.current, l.want, l.spare = nil, 0, nil
	if s != nil {
		s.current = false
		if s.users == 0 {
			l.memory.Free(s.block)
		}
	}
}
