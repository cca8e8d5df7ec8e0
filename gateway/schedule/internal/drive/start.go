package drive

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

var _ schedule.Starter = (*Driver)(nil)

// Start is schedule.Starter's. Answers that keep an order, come in any number or belong
// to sequences need a goroutine that waits, so those schedulers say false.
func (d *Driver) Start(ctx context.Context, req *infer.Request, to infer.Sink) bool {
	if d.cfg.Preserve || d.cfg.Model.Decoupled || d.staged {
		return false
	}
	it, err := d.begin(ctx, req)
	if err == nil {
		it.to = to
		err = d.enqueue(it)
	}
	if err != nil {
		infer.Flush(to.Done(err))
		return true
	}
	it.watch()
	return true
}

// watch lets the end of the caller's context take the item out. It takes the reference of who is
// told of that end. Contexts of our transports are lifetime.Watchable; those of others, as net/http's,
// are watched all the same, for more allocations.
func (it *item) watch() {
	w, ok := it.ctx.(lifetime.Watchable)
	it.mu.Lock()
	over := it.over
	if ok && !over {
		it.watched = w
	}
	it.mu.Unlock()
	switch {
	case over:
		it.d.recycle(it)
	case !ok:
		it.watchOther()
	case !w.Watch(it):
		it.Ended()
	}
}

// watchOther is watch of a context that only package context knows.
func (it *item) watchOther() {
	it.refs.Add(1) // Ended may be over before stop is set
	defer it.d.recycle(it)
	stop := context.AfterFunc(it.ctx, it.Ended)
	it.mu.Lock()
	over := it.over
	if !over {
		it.stop = stop
	}
	it.mu.Unlock()
	if over && stop() {
		it.d.recycle(it)
	}
}

// Ended is lifetime.Watcher's: the caller has gone.
func (it *item) Ended() {
	defer it.d.recycle(it)
	it.abandon()
}

// abandon ends an item whose caller has gone. While somebody sends to its sink, that one finds
// out with its next claim.
func (it *item) abandon() {
	d := it.d
	it.mu.Lock()
	if it.busy || it.over {
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
