package sequence

import (
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// stage lays out batches: the inputs of the requests row by row, then the controls,
// then the states. It is called with the driver's lock held.
type stage struct {
	cfg     *Config
	memory  schedule.Memory // nil: everything is named where it lies
	null    *queue.Entry
	initial values   // what sequences begin with; read-only
	also    []string // outputs with state
	blocks  map[uint64][]byte
	held    int64 // bytes of all states
	most    int64 // of held
	zeros   []byte

	// Of Begin, reused.
	requests []*infer.Request // nil: null
	rows     [][]byte
	plan     []planned

	// Of the batch that is being laid out; as long as those of the last one.
	dims []int64
	segs [][]byte
}

var _ drive.Stage = (*stage)(nil)

// planned is one input of a batch that is being laid out.
type planned struct {
	infer.BatchInput
	from, to int // in stage.rows
	apart    bool
	control  *Control
	size     int // bytes to be copied
}

func newStage(cfg *Config, memory schedule.Memory) (*stage, error) {
	s := &stage{cfg: cfg, memory: memory, blocks: map[uint64][]byte{}, most: maxStates}
	for i := range cfg.States {
		v, err := cfg.States[i].begin(cfg.Model.Name)
		if err != nil {
			return nil, err
		}
		s.initial = append(s.initial, v)
		s.also = append(s.also, cfg.States[i].Output)
	}
	return s, nil
}

// another is a stage for the same model, of sequences that are yet to come.
func (s *stage) another() *stage {
	return &stage{cfg: s.cfg, memory: s.memory, initial: s.initial, also: s.also, blocks: map[uint64][]byte{}, most: s.most}
}

// Begin is drive.Stage.Begin.
func (s *stage) Begin(b *infer.Batch, entries []*queue.Entry) error {
	s.requests, s.rows, s.plan = s.requests[:0], s.rows[:0], s.plan[:0]
	var lead *infer.Request
	for i, e := range entries {
		if e == s.null {
			s.requests = append(s.requests, nil)
			continue
		}
		s.requests = append(s.requests, b.Requests[i])
		if lead == nil {
			lead = b.Requests[i]
		}
	}
	defer func() { clear(s.rows) }()
	s.dims, s.segs = make([]int64, 0, len(s.dims)), make([][]byte, 0, len(s.segs))
	if s.cfg.Model.Ragged == nil {
		s.planInputs(lead, b.Rows > 0)
	}
	s.planControls(b.Rows > 0)
	s.planStates(entries, b.Rows > 0)
	b.Also = s.also
	if err := s.fill(b); err != nil || s.cfg.Model.Ragged == nil {
		return err
	}
	return s.gather(b, lead)
}

// planInputs lists the inputs that the requests have, in the model's order.
func (s *stage) planInputs(lead *infer.Request, batching bool) {
	for _, name := range s.cfg.Model.Inputs {
		if t := find(lead.Inputs, name); t != nil {
			s.planInput(t, batching)
		}
	}
	for i := range lead.Inputs {
		if !slices.Contains(s.cfg.Model.Inputs, lead.Inputs[i].Name) {
			s.planInput(&lead.Inputs[i], batching)
		}
	}
}

func find(tensors []infer.Tensor, name string) *infer.Tensor {
	for i := range tensors {
		if tensors[i].Name == name {
			return &tensors[i]
		}
	}
	return nil
}

func (s *stage) planInput(t *infer.Tensor, batching bool) {
	p := planned{BatchInput: infer.BatchInput{Name: t.Name, Datatype: t.Datatype, Shape: s.shape(t.Shape...)}, from: len(s.rows)}
	if batching && len(p.Shape) > 0 {
		p.Shape[0] = int64(len(s.requests))
	}
	for _, r := range s.requests {
		if r == nil {
			s.rows = append(s.rows, s.nothing(t.Datatype, t.Shape, len(t.Data)))
		} else {
			s.rows = append(s.rows, find(r.Inputs, t.Name).Data)
		}
	}
	s.add(p)
}

// shape keeps a shape for the batch.
func (s *stage) shape(dims ...int64) []int64 {
	at := len(s.dims)
	s.dims = append(s.dims, dims...)
	return s.dims[at:len(s.dims):len(s.dims)]
}

// nothing is the row of a null request: zeros, or empty strings.
func (s *stage) nothing(d infer.Datatype, shape []int64, n int) []byte {
	if d == infer.Bytes {
		elements, err := infer.Elements(shape)
		if err != nil {
			return nil // a validated request has no such shape
		}
		n = int(4 * elements)
	}
	if len(s.zeros) < n {
		s.zeros = make([]byte, n)
	}
	return s.zeros[:n]
}

func (s *stage) planControls(batching bool) {
	for i := range s.cfg.Controls {
		c := &s.cfg.Controls[i]
		p := planned{BatchInput: infer.BatchInput{Name: c.Name, Datatype: c.Datatype}, control: c}
		if batching {
			p.Shape = s.shape(int64(len(s.requests)), 1)
		} else {
			p.Shape = s.shape(1)
		}
		for _, r := range s.requests {
			p.size += c.size(r)
		}
		s.plan = append(s.plan, p)
	}
}

func (s *stage) planStates(entries []*queue.Entry, batching bool) {
	for k := range s.cfg.States {
		st := &s.cfg.States[k]
		p := planned{BatchInput: infer.BatchInput{Name: st.Input, Datatype: st.Datatype}, from: len(s.rows)}
		at := len(s.dims)
		if batching {
			s.shape(int64(len(s.requests)))
		}
		shaped := false
		for i, e := range entries {
			r := s.requests[i]
			if r == nil {
				s.rows = append(s.rows, nil) // once the shape is known
				continue
			}
			seq := of(e)
			if r.SequenceStart {
				s.drop(seq)
			}
			v := s.valuesOf(seq)[k]
			if !shaped {
				s.shape(v.shape...)
				p.Shape, shaped = s.dims[at:len(s.dims):len(s.dims)], true
			}
			s.rows = append(s.rows, v.data)
		}
		for i := p.from; i < len(s.rows); i++ {
			if s.requests[i-p.from] == nil {
				s.rows[i] = s.nothing(st.Datatype, dims(p.Shape, batching), s.sizeOf(st.Datatype, dims(p.Shape, batching)))
			}
		}
		s.add(p)
	}
}

func dims(shape []int64, batching bool) []int64 {
	if batching {
		return shape[1:]
	}
	return shape
}

func (s *stage) sizeOf(d infer.Datatype, shape []int64) int {
	n, err := infer.ByteSize(d, shape)
	if err != nil {
		return 0 // shapes of states were checked
	}
	return int(n)
}

// valuesOf are the states of a sequence.
func (s *stage) valuesOf(seq *sequence) values {
	if seq.values == nil {
		return s.initial
	}
	return *seq.values
}

// apartRow is the fewest bytes of a row that is named where it lies in the shared memory
// though the batch is then gathered by the worker.
const apartRow = 16 << 10

// add decides what of an input has to be copied.
func (s *stage) add(p planned) {
	p.to = len(s.rows)
	rows := s.rows[p.from:p.to]
	p.apart = s.memory == nil
	for _, r := range rows {
		if s.memory != nil && len(r) > 0 && (len(rows) == 1 || len(r) >= apartRow) && s.memory.Holds(r) {
			p.apart = true
		}
	}
	for _, r := range rows {
		if s.copies(&p, r) {
			p.size += len(r)
		}
	}
	s.plan = append(s.plan, p)
}

// copies says that a row has to be copied.
func (s *stage) copies(p *planned, row []byte) bool {
	return !p.apart || s.memory != nil && !s.memory.Holds(row)
}

const align = 64

// fill takes memory for what has to be copied, and copies it.
func (s *stage) fill(b *infer.Batch) error {
	total := 0
	for i := range s.plan {
		total += (s.plan[i].size + align - 1) &^ (align - 1)
	}
	var block []byte
	switch {
	case total == 0:
	case s.memory == nil:
		block = make([]byte, total)
	default:
		var err error
		if block, err = s.memory.Alloc(int64(total)); err != nil {
			return infer.Refusef(infer.Unavailable, infer.ReasonMemory, "no memory for a batch of model '%s': %w", s.cfg.Model.Name, err)
		}
		s.blocks[b.ID] = block
	}
	b.Inputs = make([]infer.BatchInput, 0, len(s.plan))
	for i := range s.plan {
		p := &s.plan[i]
		room := block[:0:p.size]
		block = block[(p.size+align-1)&^(align-1):]
		p.Segments = s.segments(p, room)
		b.Inputs = append(b.Inputs, p.BatchInput)
	}
	return nil
}

// segments puts the rows of an input into room, one behind the other, but for those
// that are named where they lie.
func (s *stage) segments(p *planned, room []byte) [][]byte {
	at := len(s.segs)
	if p.control != nil {
		for _, r := range s.requests {
			room = p.control.put(room, r)
		}
		s.segs = append(s.segs, room)
		return s.segs[at:len(s.segs):len(s.segs)]
	}
	if !p.apart {
		for _, r := range s.rows[p.from:p.to] {
			room = append(room, r...)
		}
		if len(room) > 0 {
			s.segs = append(s.segs, room)
		}
		return s.segs[at:len(s.segs):len(s.segs)]
	}
	for _, r := range s.rows[p.from:p.to] {
		switch {
		case len(r) == 0:
			continue
		case s.copies(p, r):
			from := len(room)
			room = append(room, r...)
			r = room[from:len(room):len(room)]
		}
		s.segs = append(s.segs, r)
	}
	return s.segs[at:len(s.segs):len(s.segs)]
}

// End is drive.Stage.End.
func (s *stage) End(b *infer.Batch, entries []*queue.Entry, res *infer.Result) {
	defer s.free(b, res.More) // whatever comes up
	if len(s.cfg.States) > 0 && res.Err == nil {
		if err := s.capture(b, entries, res); err != nil {
			res.Err, res.Outputs, res.Responses = err, nil, nil
		}
	}
}

// free gives back the memory of a batch that has no more results.
func (s *stage) free(b *infer.Batch, more bool) {
	if block := s.blocks[b.ID]; block != nil && !more {
		delete(s.blocks, b.ID)
		s.memory.Free(block)
	}
}
