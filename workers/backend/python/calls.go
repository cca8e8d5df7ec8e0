package python

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// untaken is how many answers of a call the process may have that its model has not taken.
const untaken = 8

// mostCalls bounds the calls of a process that are open; the gateway has bounds of its own.
const mostCalls = 1024

// calls are the calls of other models that a process has under way.
type calls struct {
	mu   sync.Mutex
	open map[uint64]*call // guarded by mu: by the ID of their CALL
	held map[uint64]*held // guarded by mu: answers by where their tensors lie in the exchange memory
}

// call is one of them.
type call struct {
	cancel context.CancelFunc
	room   chan struct{} // a token for each answer that is not taken
}

// held is an answer whose tensors lie in the exchange memory.
type held struct {
	call *call
	left int // tensors that were not given back
}

// further deals with the events of calls, model control, log lines and metrics.
func (r *run) further(f channel.Frame) error {
	d := channel.NewDecoder(f.Body, nil)
	switch f.Kind {
	case channel.Call:
		d = channel.NewDecoder(slices.Clone(f.Body), nil) // the call outlives the frame
		return r.call(f.ID, &d)
	case channel.CallCancel:
		r.calls.mu.Lock()
		defer r.calls.mu.Unlock()
		if c := r.calls.open[f.ID]; c != nil {
			c.cancel()
		}
		return nil
	case channel.Taken:
		r.calls.mu.Lock()
		defer r.calls.mu.Unlock()
		if c := r.calls.open[f.ID]; c != nil {
			c.taken()
		}
		return nil
	case channel.Control:
		return r.control(f.ID, &d)
	case channel.Log:
		return r.line(&d)
	case channel.Metric:
		return r.measured(&d)
	}
	return fmt.Errorf("%w: an event of kind %d", channel.ErrCorrupt, f.Kind)
}

// taken makes room for another answer.
func (c *call) taken() {
	select {
	case <-c.room:
	default: // a process that counts wrongly harms itself
	}
}

// given notes that the process has given back memory.
func (c *calls) given(offset uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[offset]
	if h == nil {
		return
	}
	delete(c.held, offset)
	if h.left--; h.left == 0 {
		h.call.taken()
	}
}

// gateway is the way to the gateway for a request, or with key 0 for the model itself. An error is
// that the request has ended, or that there is no way.
func (r *run) gateway(key uint64) (backend.Gateway, error) {
	gateway := r.model().spec.Gateway
	if key != 0 {
		q := r.slots.find(key)
		if q == nil {
			return nil, errParentEnded
		}
		q.batch.mu.Lock()
		defer q.batch.mu.Unlock()
		if q.key != key || q.closed || q.failed {
			return nil, errParentEnded
		}
		if g := q.of().Gateway(); g != nil {
			gateway = g
		}
	}
	if gateway == nil {
		return nil, infer.Errorf(infer.Unsupported, "the gateway takes no calls of models")
	}
	return gateway, nil
}

var errParentEnded = infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the request that the call serves has ended")

// asked is what a CALL frame says.
type asked struct {
	parent uint64 // the key of the request that it serves, or 0
	call   backend.Call
	params string
	blocks []channel.Segment // where inputs lie in the exchange memory
}

// asked reads a CALL frame. The inputs lie in the exchange memory where they are large; small ones are views on
// the frame.
func (r *run) asked(d *channel.Decoder) (*asked, error) {
	a := &asked{parent: d.U64()}
	c := &a.call
	c.Model = d.String()
	if version := int64(d.U64()); version >= 0 {
		c.Version = strconv.FormatInt(version, 10)
	}
	c.Correlation.ID, c.Priority = d.U64(), d.U64()
	c.Timeout = time.Duration(min(d.U64(), math.MaxInt64/1000)) * time.Microsecond
	flags := d.U32()
	d.U32()
	c.SequenceStart, c.SequenceEnd, c.Stream = flags&1 != 0, flags&2 != 0, flags&4 != 0
	c.ID, c.Correlation.Str = d.String(), d.String()
	a.params = d.String()
	outputs := d.Count(uint32(d.U16()), 4)
	inputs := d.Count(uint32(d.U16()), 4)
	for range outputs {
		c.Outputs = append(c.Outputs, d.String())
	}
	for range inputs {
		var t channel.Tensor
		if d.Tensor(&t); d.Err() != nil {
			return nil, d.Err()
		}
		if t.Segment.Area != channel.InFrame {
			data, err := r.channel.Exchange.Answered(t.Segment)
			if err != nil {
				return nil, err
			}
			t.Data, a.blocks = data, append(a.blocks, t.Segment)
		}
		c.Inputs = append(c.Inputs, t.Tensor)
	}
	return a, d.Err()
}

// call begins a call, which goes on on a goroutine of its own.
func (r *run) call(id uint64, d *channel.Decoder) error {
	a, err := r.asked(d)
	if err != nil {
		return err
	}
	free := func() {
		for _, s := range a.blocks {
			r.channel.Exchange.FreeAnswered(s)
		}
	}
	gateway, err := r.mayCall(a)
	if err != nil {
		free()
		return r.refuseCall(id, err)
	}
	k := &call{room: make(chan struct{}, untaken)}
	var ctx context.Context
	ctx, k.cancel = context.WithCancel(r.life)
	if err := r.calls.add(id, k); err != nil {
		k.cancel()
		free()
		if errors.Is(err, channel.ErrCorrupt) {
			return err
		}
		return r.refuseCall(id, err)
	}
	r.users.Go(func() {
		defer k.cancel()
		r.infer(ctx, id, k, gateway, &a.call)
		free()
		r.calls.mu.Lock()
		defer r.calls.mu.Unlock()
		delete(r.calls.open, id)
	})
	return nil
}

// callHere makes a call that has one answer, for the thread of the process that executes the batch and waits
// for it: until then there is no other frame of ring 2. An error is that the process has ended, or has to.
func (r *run) callHere(e *channel.Encoder, f channel.Frame) error {
	d := channel.NewDecoder(f.Body, nil)
	a, err := r.asked(&d)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range a.blocks {
			r.channel.Exchange.FreeAnswered(s)
		}
	}()
	gateway, err := r.mayCall(a)
	answered := false
	if err == nil && a.call.Stream {
		return fmt.Errorf("%w: a call of many answers in the ring of results", channel.ErrCorrupt)
	}
	if err == nil {
		err = gateway.Infer(r.life, &a.call, func(answer *backend.Answer) error {
			answered = answer.Final
			return r.answerCall(e, f.ID, nil, answer, nil)
		})
		if err != nil {
			err = callError(&a.call, err)
		}
	}
	if answered && err == nil {
		return nil
	}
	return r.answerCall(e, f.ID, nil, nil, err)
}

// mayCall completes a call with its parameters and gives the way that it goes.
func (r *run) mayCall(a *asked) (backend.Gateway, error) {
	var err error
	if a.call.Params, err = paramsOf(a.params); err != nil {
		return nil, err
	}
	return r.gateway(a.parent)
}

// add notes a call that begins. Two open calls of one number are ErrCorrupt.
func (c *calls) add(id uint64, k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open, c.held = map[uint64]*call{}, map[uint64]*held{}
	}
	if c.open[id] != nil {
		return fmt.Errorf("%w: two open calls of the number %d", channel.ErrCorrupt, id)
	}
	if len(c.open) >= mostCalls {
		return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull,
			"the process has %d open calls, the most that it may have", mostCalls)
	}
	c.open[id] = k
	return nil
}

// infer makes a call and gives its answers to the process.
func (r *run) infer(ctx context.Context, id uint64, k *call, gateway backend.Gateway, c *backend.Call) {
	final := false
	var e channel.Encoder
	err := gateway.Infer(ctx, c, func(a *backend.Answer) error {
		select {
		case k.room <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		final = a.Final
		return r.answerCall(&e, id, k, a, nil)
	})
	if final && err == nil {
		return
	}
	if err != nil {
		err = callError(c, err)
	}
	if err := r.answerCall(&e, id, k, nil, err); err != nil && !errors.Is(err, channel.ErrClosed) {
		r.log.Error("a call's end could not be told to the model", "error", err)
	}
}

// answerCall gives the process an answer to a call, or the call's end: by an error, or without one. k is nil where
// no answer follows.
func (r *run) answerCall(e *channel.Encoder, id uint64, k *call, a *backend.Answer, failed error) error {
	e.Reset()
	switch {
	case failed != nil:
		encodeFailure(e, failed)
		return r.reply(id, e.Body())
	case a == nil:
		e.U8(partFinal)
		return r.reply(id, e.Body())
	}
	flags := uint8(partAnswer)
	if a.Final {
		flags |= partFinal
	}
	if a.Final && len(a.Outputs) == 0 && len(a.Params) == 0 {
		flags = partFinal
	}
	e.U8(flags)
	if flags&partAnswer != 0 {
		e.U8(0)
		e.String("")
		e.String(paramsJSON(a.Params))
		e.U16(uint16(len(a.Outputs)))
		if err := r.encodeOutputs(e, k, a.Outputs); err != nil {
			return err
		}
	}
	return r.reply(id, e.Body())
}

// refuseCall answers a call that does not begin, on the goroutine that reads events.
func (r *run) refuseCall(id uint64, why error) error {
	var e channel.Encoder
	encodeFailure(&e, why)
	return r.replySoon(id, e.Body())
}

// encodeFailure appends the one answer of a call that failed.
func encodeFailure(e *channel.Encoder, failed error) {
	e.U8(partFinal | partAnswer)
	e.U8(codeNumber(infer.CodeOf(failed)))
	e.String(failed.Error())
	e.String("")
	e.U16(0)
}

// encodeOutputs appends the tensors of an answer. Those that don't fit into the frame lie in the
// exchange memory, and are the process's until it gives them back.
func (r *run) encodeOutputs(e *channel.Encoder, k *call, outputs []infer.Tensor) error {
	h := &held{call: k}
	var blocks []channel.Segment
	for i := range outputs {
		t := &outputs[i]
		if e.Inlines(len(t.Data)) {
			e.TensorInline(t)
			continue
		}
		s, mem, err := r.channel.Exchange.Alloc(int64(len(t.Data)), true)
		if err != nil {
			for _, s := range blocks {
				r.channel.Exchange.Free(s)
			}
			return err
		}
		copy(mem, t.Data)
		blocks = append(blocks, s)
		e.Tensor(t, s)
	}
	if k == nil {
		return nil
	}
	r.calls.mu.Lock()
	defer r.calls.mu.Unlock()
	for _, s := range blocks {
		h.left++
		r.calls.held[s.Offset] = h
	}
	return nil
}

// callError is the failure of a call: in Triton's words where it was refused before the other
// model had it, and else that model's own.
func callError(c *backend.Call, err error) error {
	text, prefix := err.Error(), "Model "+c.Model+" - Error when running inference: "
	notReady := prefix + "Failed for execute the inference request. Model '" + c.Model + "' is not ready."
	switch code := infer.CodeOf(err); {
	case code == infer.NotFound && strings.HasPrefix(text, "Request for unknown model"):
		return infer.Errorf(infer.NotFound, "%s", notReady)
	case infer.ReasonOf(err) == infer.ReasonNotReady:
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s", notReady)
	case code == infer.Unsupported && strings.HasPrefix(text, "the call takes one response"):
		return infer.Errorf(infer.Unsupported,
			"%sModel %s is using the decoupled. The current BLS request call doesn't support models "+
				"using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "+
				"decoupled models.'", prefix, c.Model)
	case infer.ReasonOf(err) == infer.ReasonMemory || infer.ReasonOf(err) == infer.ReasonTooLarge:
		return fmt.Errorf("Failed to increase the shared memory pool size for key '%s': %w", c.Model, err)
	case code == infer.InvalidArg && strings.Contains(text, "model '"+c.Model+"'"):
		return fmt.Errorf("%s%w", prefix, err)
	}
	return err
}
