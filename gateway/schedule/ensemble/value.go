package ensemble

import (
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// value is a tensor of a frame.
type value struct {
	tensor  infer.Tensor
	mem     *infer.Buffer // under tensor.Data; one reference; nil: plain bytes
	uses    int           // steps that will still read it, and one for the answer
	there   bool          // false also when the step did not answer it
	batched bool          // the first dimension is the batch
	step    bool          // a step made it, so seq is set
	seq     sequence
}

// sequence is what a request says of the sequence that it belongs to.
type sequence struct {
	id         infer.Correlation
	start, end bool
}

func (v *value) release() {
	v.mem.Release()
	*v = value{}
}

// drop ends one use.
func (v *value) drop() {
	if v.uses--; v.uses <= 0 {
		v.release()
	}
}

// together is one reference to all memory under values, for a request or an answer made
// of them. Each adds a reference of its own, given back when the last one to the whole
// is.
func together(mems []*infer.Buffer) *infer.Buffer {
	if len(mems) == 0 {
		return nil
	}
	for _, m := range mems {
		m.Retain()
	}
	if len(mems) == 1 {
		return mems[0]
	}
	held := make([]*infer.Buffer, len(mems))
	copy(held, mems)
	return infer.NewBuffer(nil, func(*infer.Buffer) {
		for _, m := range held {
			m.Release()
		}
	})
}

// call is one execution of a step, with room for what it usually needs in one
// allocation. It is not reused: an instance may still read its request after an error.
type call struct {
	req  infer.Request
	resp *infer.Response // taken, not yet handed on
	more bool            // a second one came
	seq  sequence        // what req said of its sequence; a scheduler may number it anew
	mems []*infer.Buffer

	roomInputs [4]infer.Tensor
	roomDims   [16]int64
	roomMems   [4]*infer.Buffer
}

// take is the infer.SendFunc of a step that answers once.
func (c *call) take(resp *infer.Response) error {
	if c.resp != nil {
		c.more = true
		resp.Memory.Release()
		return infer.Errorf(infer.Internal, "more than one response, though the model is not decoupled")
	}
	c.resp = resp
	return nil
}

// newCall makes a step's request from the tensors of its frame, and takes references to
// their memory. What the frame has not, the request has not: whether it is needed, the
// step's model says.
// Source: EnsembleContext::InitStep of the original.
func (r *runner) newCall(j job, m schedule.Pinned) *call {
	n, top := &r.s.graph.nodes[j.step], r.req
	c := &call{}
	name := r.s.cfg.Steps[j.step].Model.Name
	c.req = infer.Request{ID: top.ID, Model: name, Outputs: r.requested(j.step), Params: top.Params,
		Priority: top.Priority, Timeout: top.Timeout, Streaming: true, Depth: top.Depth + 1, Tenant: top.Tenant,
		Caller: top.Caller, Weight: top.Weight, Origin: top.Origin, Within: top.Within}
	seq := sequence{top.Correlation, top.SequenceStart, top.SequenceEnd}
	taken := false
	c.req.Inputs, c.mems = c.roomInputs[:0], c.roomMems[:0]
	dims := c.roomDims[:0]
	for _, p := range n.in {
		v := &j.frame.values[p.tensor]
		if v.step && !taken {
			seq, taken = v.seq, true
		}
		if !v.there {
			continue
		}
		from := len(dims)
		dims = append(dims, m.Fit(p.name, v.batched, v.tensor.Shape)...)
		c.req.Inputs = append(c.req.Inputs, infer.Tensor{Name: p.name, Datatype: v.tensor.Datatype,
			Shape: dims[from:len(dims):len(dims)], Data: v.tensor.Data, Place: v.tensor.Place})
		c.hold(v.mem)
	}
	c.req.Correlation, c.req.SequenceStart, c.req.SequenceEnd = seq.id, seq.start, seq.end
	c.seq = seq
	c.req.Memory = together(c.mems)
	c.req.Trace = top.Trace.Child(name, top.ID)
	return c
}

func (c *call) hold(mem *infer.Buffer) {
	if mem == nil {
		return
	}
	for _, have := range c.mems {
		if have == mem {
			return
		}
	}
	c.mems = append(c.mems, mem)
}

// keep puts a step's answer into its frame. It takes resp's memory.
// Source: EnsembleContext::ConsumeResponse of the original, also of the parameters that
// name another sequence for the steps behind.
func (r *runner) keep(f *frame, j job, c *call, resp *infer.Response) error {
	defer resp.Memory.Release()
	seq, err := follows(c.seq, resp.Params)
	if err != nil {
		return err
	}
	for _, o := range r.s.graph.nodes[j.step].out {
		v := &f.values[o.tensor]
		v.step, v.seq, v.uses = true, seq, r.run.p.uses[o.tensor]
		if v.uses == 0 {
			continue
		}
		for i := range resp.Outputs {
			if resp.Outputs[i].Name != o.name {
				continue
			}
			v.tensor, v.there, v.batched = resp.Outputs[i], true, r.pins[j.step].Batched()
			resp.Memory.Retain()
			v.mem = resp.Memory
			break
		}
	}
	return nil
}

// follows is the sequence of the steps behind: that of the step, or what its answer
// says.
func follows(seq sequence, params infer.Params) (sequence, error) {
	told := sequence{id: seq.id}
	other := false
	for i := range params {
		v := &params[i].Value
		switch params[i].Name {
		case "sequence_id":
			switch v.Kind {
			case infer.KindInt64, infer.KindUint64:
				told.id = infer.Correlation{ID: uint64(v.Int)}
			case infer.KindString:
				told.id = infer.Correlation{Str: v.Str}
			default:
				return seq, infer.Errorf(infer.InvalidArg,
					"expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING")
			}
			other = true
		case "sequence_start", "sequence_end":
			if v.Kind != infer.KindBool {
				return seq, infer.Errorf(infer.InvalidArg, "expect parameter '%s' to be TRITONSERVER_PARAMETER_BOOL", params[i].Name)
			}
			if params[i].Name == "sequence_start" {
				told.start = v.Bool
			} else {
				told.end = v.Bool
			}
			other = true
		}
	}
	if other {
		return told, nil
	}
	return seq, nil
}

// response is the ensemble's answer from a frame.
// Source: EnsembleContext::CheckAndSetEnsembleOutput of the original.
func (r *runner) response(f *frame) *infer.Response {
	a := &answer{}
	resp := &a.Response
	resp.ID, resp.Model, resp.Version = r.req.ID, r.s.cfg.Model.Name, r.s.version
	resp.Outputs = a.roomOutputs[:0]
	mems := a.roomMems[:0]
	told := false
	for i, t := range r.s.graph.outputs {
		v := &f.values[t]
		if !r.run.p.wanted[t] || v.uses == 0 {
			continue
		}
		if v.step && v.there && !told {
			told = true
			resp.Params = v.seq.params(a.roomParams[:0])
		}
		if v.there {
			out := v.tensor
			out.Name = r.s.graph.names[t]
			out.Shape = schedule.Fit(r.s.cfg.Outputs[i].Dims, r.s.cfg.Model.MaxBatchSize > 0, v.batched, out.Shape)
			resp.Outputs = append(resp.Outputs, out)
			if v.mem != nil && (len(mems) == 0 || mems[len(mems)-1] != v.mem) {
				mems = append(mems, v.mem)
			}
		}
	}
	resp.Memory = together(mems)
	for t := range f.values {
		if v := &f.values[t]; r.run.p.wanted[t] && v.uses > 0 {
			v.drop()
		}
	}
	return resp
}

// answer is a response with room for what it usually has.
type answer struct {
	infer.Response
	roomOutputs [2]infer.Tensor
	roomMems    [2]*infer.Buffer
	roomParams  [3]infer.Param
}

// params are the parameters that every answer of an ensemble has.
func (s sequence) params(room infer.Params) infer.Params {
	id := infer.Value{Kind: infer.KindInt64, Int: int64(s.id.ID)}
	if s.id.Str != "" {
		id = infer.Value{Kind: infer.KindString, Str: s.id.Str}
	}
	return append(room, infer.Param{Name: "sequence_id", Value: id},
		infer.Param{Name: "sequence_start", Value: infer.Value{Kind: infer.KindBool, Bool: s.start}},
		infer.Param{Name: "sequence_end", Value: infer.Value{Kind: infer.KindBool, Bool: s.end}})
}
