package httpapi

import "github.com/sluice-serve/sluice/infer"

// start hands the request to the pipeline, whose answer makes the reply ready.
func (x *exchange) start() {
	a, call := x.api, x.call
	if x.started = true; call.Burst != nil {
		x.m.req.Burst = call.Burst
	}
	wait := a.pipeline.Start(x.ctx, &x.m.req, x)
	switch {
	case wait == nil: // x may be another call's by now
	case call.Inline:
		x.started = false
		go wait()
		call.Burst.Woke()
	default:
		x.started = false
		wait()
	}
}

// largeJSON is how many bytes of tensors are written as JSON by who has the results: about
// a hundred microseconds.
const largeJSON = 8 << 10

// Large is infer.Sink's.
func (x *exchange) Large(resp *infer.Response) bool {
	size := 0
	for i := range resp.Outputs {
		if o := &resp.Outputs[i]; !x.wantsBinary(o.Name) {
			size += len(o.Data)
		}
	}
	return size > largeJSON
}

// Done is infer.Sink's. Where nobody waits, what is to be said of an error is told and
// logged on a goroutine of its own, since that may take its time.
func (x *exchange) Done(err error) infer.Flusher {
	if x.to != nil && (err != nil || x.fault != nil || x.sent == 0) {
		go func() { infer.Flush(x.finish(err)) }()
		return nil
	}
	return x.finish(err)
}

// finish makes the reply ready.
func (x *exchange) finish(err error) infer.Flusher {
	a, reply, to := x.api, x.reply, x.to
	if p := x.concluded(err); p != nil {
		a.fail(x.ctx, x.call, nil, reply, p)
	} else if err == nil && x.started && reply.ending == nil { // then no instance reads the request any more
		*x.m = message{}
		a.messages.Put(x.m)
	}
	x.free()
	if to == nil {
		return nil
	}
	a.replied(reply)
	return to.Answered()
}

// concluded is conclude, of which a panic ends the one call.
func (x *exchange) concluded(err error) (fault error) {
	defer recovered(&fault)
	x.conclude(err)
	return nil
}
