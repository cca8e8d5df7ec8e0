package httpapi

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Answerer hears of a reply that was started.
type Answerer interface {
	// Answered says that the reply is ready. It is called once, on any goroutine, which then
	// flushes what it returns, if that is not nil.
	Answered() infer.Flusher
}

// Start is Serve without waiting, where that can be. With later the reply is ready when
// to's Answered is called, which may be before Start returns; the call must stay as it is
// until then. Else it is ready now.
func (a *API) Start(ctx context.Context, call *Call, reply *Reply, to Answerer) (later bool) {
	rt, ok := a.resolve(call)
	encoding, _ := call.encodings()
	if !ok || rt.kind != routeInfer || !rt.allows(call.method()) || encoding != "" || call.frame() != unframed {
		a.Serve(ctx, call, reply) // it may wait; compressing would hold up others
		return false
	}
	if a.startInfer(ctx, call, rt, reply, to) {
		return true
	}
	a.replied(reply)
	return false
}

// patient says that the pipeline may wait before a body is read.
func (a *API) patient() bool {
	p, ok := a.pipeline.(interface{ Patient() bool })
	return ok && p.Patient()
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

// Send is infer.Sink's.
func (x *exchange) Send(resp *infer.Response) error { return x.send(resp) }

// Done is infer.Sink's. What is to be said of an error is told and logged on a goroutine
// of its own, since that may take its time.
func (x *exchange) Done(err error) infer.Flusher {
	if err != nil || x.fault != nil || x.sent == 0 {
		go func() { infer.Flush(x.finish(err)) }()
		return nil
	}
	return x.finish(nil)
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
	a.replied(reply)
	return to.Answered()
}

// concluded is conclude, of which a panic ends the one call.
func (x *exchange) concluded(err error) (fault error) {
	defer recovered(&fault)
	x.conclude(err)
	return nil
}
