package drive

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

var _ schedule.Starter = (*Driver)(nil)

// watchable is a context that tells of its end without a goroutine.
type watchable interface {
	context.Context
	Watch(w lifetime.Watcher) bool
	Unwatch(w lifetime.Watcher) bool
}

var _ watchable = (*lifetime.Context)(nil)

// Start is schedule.Starter's. Answers that keep an order, come in any number or belong
// to sequences need a goroutine that waits, so those schedulers say false.
func (d *Driver) Start(ctx context.Context, req *infer.Request, to infer.Sink) bool {
	if d.cfg.Preserve || d.cfg.Model.Decoupled || d.staged {
		return false
	}
	it, err := d.begin(ctx, req, nil, to)
	if err != nil {
		infer.Flush(to.Done(err))
		return true
	}
	it.watch()
	d.recycle(it)
	return true
}

// watch lets the end of the caller's context take the item out. Whoever is told of the
// end holds a reference.
func (it *item) watch() {
	w, ok := it.ctx.(watchable)
	it.mu.Lock()
	if it.over {
		it.mu.Unlock()
		return
	}
	it.refs.Add(1)
	if ok {
		it.watched = w
		it.mu.Unlock()
		if !w.Watch(it) {
			it.Ended()
		}
		return
	}
	it.mu.Unlock()
	stop := context.AfterFunc(it.ctx, it.Ended)
	it.mu.Lock()
	over := it.over
	it.stop = stop
	it.mu.Unlock()
	if over && stop() {
		it.d.recycle(it)
	}
}

// unwatch ends it. It must be called once, after over was set.
func (it *item) unwatch() {
	it.mu.Lock()
	w, stop := it.watched, it.stop
	it.mu.Unlock()
	if w != nil && w.Unwatch(it) || stop != nil && stop() {
		it.d.recycle(it)
	}
}

// Ended is lifetime.Watcher's: the caller has gone.
func (it *item) Ended() {
	d := it.d
	defer d.recycle(it)
	it.mu.Lock()
	if it.busy || it.over {
		it.quit = true
		it.mu.Unlock()
		return
	}
	it.over = true
	it.mu.Unlock()
	err, to := left(it.ctx, it.req), it.to
	d.leave(it)
	d.recycle(it)
	defer d.caught("a caller met a fault")
	infer.Flush(to.Done(err))
}

// claim takes the first part that nobody has sent yet, and the right to send it; again
// says that the caller has that right. Where the caller has left meanwhile, his error is
// the part.
func (it *item) claim(again bool) (p part, ok bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.over || it.busy && !again {
		return p, false
	}
	if it.quit {
		return part{err: left(it.ctx, it.req)}, true
	}
	if it.busy = len(it.parts) > 0; !it.busy {
		return p, false
	}
	p = it.parts[0]
	n := copy(it.parts, it.parts[1:])
	it.parts[n] = part{}
	it.parts = it.parts[:n]
	return p, true
}

// deliver sends what was handed over to a sink, unless another goroutine is at it. It is
// called without locks, by who holds a reference. What it returns is to be flushed.
func (d *Driver) deliver(it *item) (f infer.Flusher) {
	p, ok := it.claim(false)
	if !ok {
		return nil
	}
	return d.deliverFrom(it, &p, nil, false)
}

// deliverLarge is deliver for an answer that takes long, on a goroutine of its own.
func (d *Driver) deliverLarge(it *item, p part, resp *infer.Response) {
	defer d.recycle(it)
	defer d.caught("a connection met a fault")
	infer.Flush(d.deliverFrom(it, &p, resp, true))
}

// deliverFrom begins with a part, or with its response if there is one already. patient says
// that its goroutine has time. A sink that panics has its end, if it hasn't yet.
func (d *Driver) deliverFrom(it *item, p *part, resp *infer.Response, patient bool) (f infer.Flusher) {
	to, over, whole := it.to, false, false
	defer func() {
		if !whole {
			f = d.giveUp(it, to, over, recover())
			p.mem.Release()
		}
	}()
	for ok := true; ok; *p, ok = it.claim(true) {
		var err error
		if resp == nil {
			resp, err = d.reply(it, p)
		}
		if err == nil && !patient && to.Large(resp) {
			it.refs.Add(1)
			if p.batch != nil {
				p.batch.Woke = true
			}
			go d.deliverLarge(it, *p, resp)
			break
		}
		if over, err = d.send(it, p.final, resp, err); over {
			f = to.Done(err)
			break
		}
		resp = nil
	}
	whole = true
	return f
}

// giveUp ends an item whose sink has panicked, unless its Done did.
func (d *Driver) giveUp(it *item, to infer.Sink, over bool, v any) infer.Flusher {
	err := infer.Recovered(v)
	d.log("a caller met a fault", err)
	if over {
		return nil
	}
	err = errFault(it.req)
	_, _ = d.send(it, false, nil, err)
	defer d.caught("a caller met a fault")
	return to.Done(err)
}

// send sends one response, or an error, and says that it was the last: then the sink's Done
// is to be called with the error that comes back, and the item may be another's.
func (d *Driver) send(it *item, final bool, resp *infer.Response, err error) (over bool, end error) {
	if err == nil {
		err = it.to.Send(resp)
	}
	if !final && err == nil {
		return false, nil
	}
	d.end(it, final)
	return true, err
}

// tell delivers to items that were failed while the lock was held.
func (d *Driver) tell(late []*item) {
	if len(late) == 0 {
		return
	}
	defer d.caught("a connection met a fault")
	var fs flushers
	for _, it := range late {
		fs.add(d.deliver(it))
		d.recycle(it)
	}
	fs.flush()
}
