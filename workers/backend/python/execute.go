package python

import (
	"encoding/json"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// Execute fits backend.Instance.
func (in *instance) Execute(b backend.Batch) error {
	r, err := in.serving()
	if err != nil {
		return err
	}
	defer r.users.Done()
	if in.model.stateful && in.untold.Load() && in.lostSequence(r, b) {
		in.untold.Store(false)
		return infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "%s (its process had ended)",
			unhealthy(in.name))
	}
	x := in.spare
	if x == nil {
		x = &batch{}
	}
	in.spare = nil
	if err := x.begin(r, b); err != nil {
		in.spare = x
		return err
	}
	in.current.Store(x)
	in.model.backend.watch.look()
	if limit := in.model.limits.execute; limit > 0 {
		t := time.AfterFunc(limit, func() {
			r.hung(infer.Errorf(infer.Internal, "execute took longer than %v",
				limit))
		})
		defer t.Stop()
	}
	err = in.execute(x, b)
	in.current.Store(nil)
	if n := r.served.Add(uint64(len(x.requests))); in.model.limits.requests > 0 && n >= in.model.limits.requests {
		select {
		case in.full <- struct{}{}:
		default:
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.end()
	}
	if x.b = nil; x.open == nil {
		in.spare = x
	}
	return err
}

// mostStarted bounds the sequences that are remembered as begun; beyond it the others are taken
// for ended.
const mostStarted = 1 << 16

// lostSequence says that a request continues a sequence that did not begin in this process.
func (in *instance) lostSequence(r *run, b backend.Batch) bool {
	for _, q := range b.Requests() {
		id, start, end := q.Correlation()
		_, known := r.started[id]
		switch {
		case !start && !known && !id.IsZero():
			return true
		case end:
			delete(r.started, id)
		case start && len(r.started) >= mostStarted:
			in.untold.Store(false)
		case start && r.started == nil:
			r.started = map[infer.Correlation]struct{}{id: {}}
		case start:
			r.started[id] = struct{}{}
		}
	}
	return false
}

// execute has the process execute x. An error is that of the requests without an answer; the
// process then knows of none of them.
func (in *instance) execute(x *batch, b backend.Batch) error {
	if in.model.keepsAtOnce {
		x.mu.Lock()
		err := x.keep()
		x.mu.Unlock()
		if err != nil {
			return err
		}
	}
	r := x.run
	in.executions++
	if err := in.encode(x, b); err != nil {
		return err
	}
	if x.open != nil {
		x.open.Release() // the process has its own
	} else {
		b.InputDone()
	}
	f, err := in.result(r)
	if err != nil {
		return err
	}
	if x.open == nil {
		b.InferDone()
	}
	return in.settle(x, f)
}

// result has the process execute what is encoded, and waits for its RESULT. Calls that the executing thread of the
// process waits for are made here: nobody else has to wake for them.
func (in *instance) result(r *run) (channel.Frame, error) {
	free, err := r.write(r.commands, channel.Execute, in.executions, in.encoder.Body(), false)
	if err != nil {
		return channel.Frame{}, r.broken(err)
	}
	defer free()
	for {
		f, err := r.results.NextHere()
		if err == nil && f.Kind == channel.Call {
			if err = r.callHere(&in.reply, f); err == nil {
				continue
			}
		}
		if err != nil {
			return f, r.broken(err)
		}
		if f.Kind != channel.Result || f.ID != in.executions {
			return f, r.corrupt("a frame of kind %d for batch %d, want the result of batch %d", f.Kind, f.ID,
				in.executions)
		}
		return f, nil
	}
}

// giveGrant takes memory for the answers of a batch, as much as the last ones needed. Where there
// is none the process asks for what it needs.
func (in *instance) giveGrant(x *batch, b backend.Batch) {
	x.grant, x.room = channel.Segment{}, nil
	if in.grant == 0 {
		return
	}
	if arenas := x.run.arenas; arenas != nil && x.open == nil {
		if mem, err := b.Alloc(in.grant); err == nil {
			if answers, offset, ok := arenas.Locate(mem); ok && answers {
				x.room = mem
				x.grant = channel.Segment{Area: channel.InAnswer, Offset: uint64(offset), Length: uint64(in.grant)}
				return
			}
		}
	}
	if s, _, err := x.run.channel.Exchange.Alloc(in.grant, true); err == nil {
		x.grant = s
	}
}

// encode puts EXECUTE together. What doesn't go into the frame lies in an arena that the process
// sees, or in the exchange memory.
func (in *instance) encode(x *batch, b backend.Batch) error {
	e, m := &in.encoder, in.model
	e.Reset()
	in.giveGrant(x, b)
	requests := b.Requests()
	e.U32(uint32(len(requests)))
	e.U32(uint32(b.Rows()))
	e.Segment(x.grant)
	for i, q := range requests {
		inputs := q.Inputs()
		id, start, end := q.Correlation()
		flags := uint32(0)
		if start {
			flags |= 1
		}
		if end {
			flags |= 2
		}
		e.U64(x.requests[i].key)
		e.U64(id.ID)
		known, params := backend.ContextOf(q.Params())
		e.U64(uint64(known.Timeout.Microseconds()))
		e.U32(uint32(q.Rows()))
		e.U32(flags)
		e.U16(uint16(len(inputs)))
		wanted := e.Mark16()
		e.U32(0)
		e.String(q.ID())
		e.String(id.Str)
		e.String(traceJSON(known))
		e.String(paramsJSON(params))
		for _, name := range m.outputNames {
			if q.Wants(name) {
				e.Count16(wanted)
				e.String(name)
			}
		}
		for k := range inputs {
			if err := in.encodeInput(x, &inputs[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (in *instance) encodeInput(x *batch, t *infer.Tensor) error {
	if in.encoder.Inlines(len(t.Data)) {
		in.encoder.TensorInline(t)
		return nil
	}
	// A batch that is kept may end before the process has looked at it.
	if arenas := x.run.arenas; arenas != nil && x.open == nil {
		if answers, offset, ok := arenas.Locate(t.Data); ok {
			area := uint8(channel.InInputs)
			if answers {
				area = channel.InAnswer
			}
			in.encoder.Tensor(t, channel.Segment{Area: area, Offset: uint64(offset), Length: uint64(len(t.Data))})
			return nil
		}
	}
	s, mem, err := x.run.channel.Exchange.Alloc(int64(len(t.Data)), false)
	if err != nil {
		return err
	}
	copy(mem, t.Data)
	x.blocks = append(x.blocks, s)
	in.encoder.Tensor(t, s)
	return nil
}

// traceJSON is a trace context as models see it; "" for none.
func traceJSON(known backend.Context) string {
	switch {
	case known.Traceparent == "":
		return ""
	case known.Tracestate == "":
		return `{"traceparent":"` + known.Traceparent + `"}`
	}
	state, err := json.Marshal(known.Tracestate)
	if err != nil { // no string gives one
		return ""
	}
	return `{"traceparent":"` + known.Traceparent + `","tracestate":` + string(state) + `}`
}
