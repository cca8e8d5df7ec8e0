package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Start is Infer for a front end that has no goroutine to wait on: to has the responses
// and the end, maybe before Start returns. Where somebody must wait all the same — a
// model whose answers keep an order or come in any number, an ensemble, a response that
// is in no local cache, or is and takes long to send, limits that are asked for over a network — wait is not nil, and the caller calls it once, on a goroutine
// that may block; to's Done then comes before it returns.
func (p *Pipeline) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	if p.patient {
		return func() {
			infer.Flush(to.Done(guarded(func() error { return p.Infer(ctx, req, to.Send) })))
		}
	}
	w, ok := p.walks.Get().(*walk)
	if !ok {
		w = &walk{p: p}
		w.send, w.hit = w.Send, w.sendHit
	}
	w.req, w.to, w.ctx = req, to, ctx
	if err := w.begin(ctx); err != nil {
		infer.Flush(w.Done(err))
		return nil
	}
	m := w.m
	sub := p.subject(m)
	if req.Placed() {
		if sub != nil || !m.Places(req) {
			return func() { w.run(func() error { return p.executePlaced(ctx, m, req, w.send) }) }
		}
	} else if sub != nil {
		rest, err := w.ask(ctx, sub)
		switch {
		case rest != nil:
			return func() { w.run(rest) }
		case w.large != nil:
			return func() { w.run(w.sendLarge) }
		}
		infer.Flush(w.Done(err))
		return nil
	}
	if m.Start(ctx, req, w) {
		return nil
	}
	return func() { w.run(func() error { return m.Do(ctx, req, w.send) }) }
}

// walk is a started request on its way: the sink of its model, before the sink of its
// caller. It is pooled; Done is its last step.
type walk struct {
	p    *Pipeline
	m    Model // nil: not found
	req  *infer.Request
	to   infer.Sink
	ctx  context.Context // the request's, for Send
	send infer.SendFunc  // Send, made once
	hit  infer.SendFunc  // sendHit, made once

	early bool            // the cache is asked by who must not be kept
	large *infer.Response // a hit that was found then, and takes long to send
}

// begin are the steps before the cache. A panic of ours ends the one request.
func (w *walk) begin(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
	}()
	if w.m, err = w.p.enter(ctx, w.req); err != nil {
		return err
	}
	return w.p.checked(ctx, w.m, w.req)
}

// ask is the cache's Start. A panic of ours ends the one request.
func (w *walk) ask(ctx context.Context, sub *cache.Subject) (rest func() error, err error) {
	w.early = true
	defer func() {
		w.early = false
		if v := recover(); v != nil {
			rest, err = nil, infer.Recovered(v)
		}
	}()
	return w.p.deps.Cache.Start(ctx, sub, w.m, w.req, w.hit)
}

// run waits for the end of what could not be started.
func (w *walk) run(rest func() error) {
	infer.Flush(w.Done(guarded(rest)))
}

// guarded makes an error of a panic of ours.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
	}()
	return f()
}

// classesAside is the size of outputs from which classes are made on a goroutine of their
// own.
const classesAside = 64 << 10

// Large is infer.Sink's.
func (w *walk) Large(resp *infer.Response) bool {
	for i := range w.req.Outputs {
		if w.req.Outputs[i].Classification == 0 {
			continue
		}
		size := 0
		for k := range resp.Outputs {
			size += len(resp.Outputs[k].Data)
		}
		if size >= classesAside {
			return true
		}
		break
	}
	return w.to.Large(resp)
}

// Send is infer.Sink's.
func (w *walk) Send(resp *infer.Response) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
	}()
	if err := w.p.present(w.ctx, w.m, w.req, resp); err != nil {
		return err
	}
	return w.to.Send(resp)
}

// sendHit is Send, but for a large hit that the cache finds while it is asked by who must
// not be kept: that one is left to who waits.
func (w *walk) sendHit(resp *infer.Response) error {
	if w.early && w.Large(resp) {
		w.large = resp
		return nil
	}
	return w.Send(resp)
}

func (w *walk) sendLarge() error {
	resp := w.large
	w.large = nil
	return w.Send(resp)
}

// Done is infer.Sink's.
func (w *walk) Done(err error) infer.Flusher {
	if w.m != nil {
		w.p.leave(w.m, w.req, err)
		w.m.Release()
	}
	to := w.to
	w.m, w.req, w.to, w.ctx = nil, nil, nil, nil
	w.p.walks.Put(w)
	return to.Done(err)
}
