package sequence

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// values are the states of one sequence, in the order of the config.
type values []value

// value is one state of one sequence, without batch dimension.
type value struct {
	shape []int64
	data  []byte
}

// begin is what a sequence begins with.
func (st *State) begin(model string) (value, error) {
	v := value{shape: slices.Clone(st.Dims), data: st.Initial}
	if st.Initial != nil {
		v.shape = slices.Clone(st.InitialDims)
	}
	for i, n := range v.shape {
		if n < 0 {
			v.shape[i] = 1
		}
	}
	n, err := infer.Elements(v.shape)
	if err != nil {
		return v, infer.Errorf(infer.InvalidArg, "model '%s': state '%s': %w", model, st.Input, err)
	}
	size := n * st.Datatype.Size()
	if st.Datatype == infer.Bytes {
		size = n * 4
	}
	if size > maxState || n > maxState {
		return v, infer.Errorf(infer.InvalidArg, "model '%s': state '%s' of shape %v takes more than %d bytes", model, st.Input, v.shape, int64(maxState))
	}
	switch {
	case st.Initial == nil:
		v.data = make([]byte, size)
	case st.Datatype == infer.Bytes:
		have, err := infer.CountBytesElements(st.Initial)
		if err != nil || have != n {
			return v, infer.Errorf(infer.InvalidArg, "model '%s': the initial state of '%s' has not %d strings", model, st.Input, n)
		}
	case int64(len(st.Initial)) != size:
		return v, infer.Errorf(infer.InvalidArg, "initial_state setting expects %d bytes, but the data provided has %d bytes for state '%s' of model '%s'",
			size, len(st.Initial), st.Input, model)
	}
	return v, nil
}

const (
	maxState  = 1 << 30 // bytes of one state of one sequence
	maxStates = 8 << 30 // of all states of a model version
)

// drop forgets the states of a sequence: it is over, or begins anew.
func (s *stage) drop(seq *sequence) {
	if seq.values == nil {
		return
	}
	for _, v := range *seq.values {
		s.held -= int64(len(v.data))
	}
	seq.values = nil
}

// varies says that sequences may have states of different shapes.
func (s *stage) varies() bool {
	return slices.ContainsFunc(s.cfg.States, func(st State) bool { return slices.Contains(st.Dims, -1) })
}

// key appends the shapes of the states that a sequence's next request meets: one batch
// has equal ones.
func (s *stage) key(dst []byte, seq *sequence, start bool) []byte {
	vs := s.initial
	if !start {
		vs = s.valuesOf(seq)
	}
	for i := range vs {
		for _, n := range vs[i].shape {
			dst = binary.AppendVarint(dst, n)
		}
	}
	return dst
}

// capture takes the new states out of a result, and what is not the client's from its
// outputs. An error fails the batch; then no state has changed.
func (s *stage) capture(b *infer.Batch, entries []*queue.Entry, res *infer.Result) error {
	if res.Outputs != nil {
		for k := range s.cfg.States {
			if t := find(res.Outputs, s.cfg.States[k].Output); t != nil {
				if err := s.check(&s.cfg.States[k], t, b.Rows); err != nil {
					return err
				}
			}
		}
		if err := s.room(res.Outputs, entries...); err != nil {
			return err
		}
		for i, e := range entries {
			if err := s.update(e, res.Outputs, b.Rows, i); err != nil {
				return err
			}
		}
		res.Outputs = s.visible(res.Outputs)
	}
	for i := range res.Responses {
		r := &res.Responses[i]
		if r.Err != nil || r.Response == nil || r.Response.Err != nil || r.Index < 0 || r.Index >= len(entries) {
			continue
		}
		rows := min(b.Rows, 1)
		for k := range s.cfg.States {
			if t := find(r.Response.Outputs, s.cfg.States[k].Output); t != nil && r.Err == nil {
				r.Err = s.check(&s.cfg.States[k], t, rows)
			}
		}
		if r.Err == nil {
			r.Err = s.room(r.Response.Outputs, entries[r.Index])
		}
		if r.Err == nil {
			r.Err = s.update(entries[r.Index], r.Response.Outputs, rows, 0)
		}
		if r.Err != nil {
			r.Response, r.Repeat = nil, false
			continue
		}
		r.Response.Outputs = s.visible(r.Response.Outputs)
		if r.Repeat && len(r.Response.Outputs) == 0 {
			r.Response = nil // it only brought states
		}
	}
	return nil
}

// check holds a state that came back against the config. rows is the batch dimension;
// 0: it has none.
func (s *stage) check(st *State, t *infer.Tensor, rows int) error {
	if t.Datatype != st.Datatype {
		return infer.Errorf(infer.Internal, "model '%s': state output '%s' is %s, its configuration says %s", s.cfg.Model.Name, st.Output,
			t.Datatype, st.Datatype)
	}
	shape := t.Shape
	ok := rows == 0 || len(shape) > 0 && shape[0] == int64(rows)
	if ok && rows > 0 {
		shape = shape[1:]
	}
	ok = ok && len(shape) == len(st.Dims)
	for i := 0; ok && i < len(shape); i++ {
		ok = st.Dims[i] < 0 || shape[i] == st.Dims[i]
	}
	if !ok {
		return infer.Errorf(infer.Internal, "model '%s': state output '%s' has shape %v for %d rows, its configuration says %v", s.cfg.Model.Name,
			st.Output, t.Shape, rows, st.Dims)
	}
	if n, err := infer.ByteSize(t.Datatype, t.Shape); err != nil || n >= 0 && n != int64(len(t.Data)) {
		return infer.Errorf(infer.Internal, "model '%s': state output '%s' of shape %v has %d bytes", s.cfg.Model.Name, st.Output, t.Shape,
			len(t.Data))
	}
	if st.Datatype == infer.Bytes {
		n, err := infer.CountBytesElements(t.Data)
		if want, none := infer.Elements(t.Shape); err != nil || none != nil || n != want {
			return infer.Errorf(infer.Internal, "model '%s': state output '%s' of shape %v has not %d strings", s.cfg.Model.Name, st.Output, t.Shape, want)
		}
	}
	if len(t.Data)/max(rows, 1) > maxState {
		return infer.Errorf(infer.Internal, "model '%s': state output '%s' has more than %d bytes for a sequence", s.cfg.Model.Name, st.Output,
			int64(maxState))
	}
	return nil
}

// room says whether the new states of the entries fit with those that are kept.
func (s *stage) room(outputs []infer.Tensor, entries ...*queue.Entry) error {
	more := int64(0)
	for k := range s.cfg.States {
		t := find(outputs, s.cfg.States[k].Output)
		if t == nil {
			continue
		}
		more += int64(len(t.Data))
		for _, e := range entries {
			if e != s.null && of(e).values != nil {
				more -= int64(len((*of(e).values)[k].data))
			}
		}
	}
	if more > 0 && s.held+more > s.most {
		return infer.Refusef(infer.Unavailable, infer.ReasonMemory, "the states of model '%s' take more than %d bytes", s.cfg.Model.Name, s.most)
	}
	return nil
}

// update keeps the states of one request's sequence, which stand in row of the outputs.
func (s *stage) update(e *queue.Entry, outputs []infer.Tensor, rows, row int) error {
	if e == s.null {
		return nil
	}
	seq := of(e)
	for k := range s.cfg.States {
		t := find(outputs, s.cfg.States[k].Output)
		if t == nil {
			continue
		}
		data, shape := t.Data, t.Shape
		switch size := len(data) / max(rows, 1); {
		case rows > 0 && t.Datatype == infer.Bytes:
			one, err := infer.Split(nil, []infer.Tensor{*t}, rows, row, 1)
			if err != nil {
				return err
			}
			data, shape = one[0].Data, shape[1:]
		case rows > 0: // check has held the shape against the rows
			data, shape = data[row*size:(row+1)*size], shape[1:]
		}
		if seq.values == nil {
			vs := slices.Clone(s.initial)
			for i := range vs { // the initial ones are shared
				vs[i] = value{shape: slices.Clone(vs[i].shape), data: slices.Clone(vs[i].data)}
				s.held += int64(len(vs[i].data))
			}
			seq.values = &vs
		}
		v := &(*seq.values)[k]
		s.held += int64(len(data) - len(v.data))
		v.shape = append(v.shape[:0], shape...)
		v.data = append(v.data[:0], data...)
	}
	return nil
}

// visible drops the outputs that are states alone.
func (s *stage) visible(outputs []infer.Tensor) []infer.Tensor {
	return slices.DeleteFunc(outputs, func(t infer.Tensor) bool {
		return slices.ContainsFunc(s.cfg.States, func(st State) bool { return st.Output == t.Name && !st.Visible })
	})
}
