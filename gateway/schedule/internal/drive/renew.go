package drive

import "github.com/sluice-serve/sluice/infer"

// A panic while the lock is held leaves the core, the layout and perhaps a batch half done,
// and nothing says which half. So nothing of them is used again: what waited ends with an
// error, once, the model begins with a new core and layout, and only what the driver keeps
// books of itself goes on: batches that instances have and their requests (inflight), which
// instances are in service and busy (health), and what waits (waiting). A batch of before
// ends as ever, but for the core, which doesn't know it: era tells.
//
// What is not the core's is caught closer to where it comes up: a stage's panic fails its
// batch, an executor's the batch that it was given, a sink's its request, an observer's
// nothing.

// renewLocked begins anew after a panic.
func (d *Driver) renewLocked(n *news) {
	d.era++
	for b := d.inflight.head; b != nil; b = b.next {
		if !b.laid {
			b.fault = errFault(b.requestOf())
		}
		b.spoil()
	}
	if n.item != nil && !n.had {
		n.item.spoilt = true
		quietly(func() { d.layout.release(n.item) })
	}
	for it := d.waiting.head; it != nil; it = d.waiting.head {
		d.waiting.remove(it)
		it.spoilt = true
		quietly(func() { d.layout.release(it) })
		d.pushLocked(it, part{err: errFault(it.req), final: true}, !d.cfg.Preserve)
	}
	d.order.advance()
	quietly(d.layout.reset)
	quietly(d.renewLimits)
	d.armed = 0 // nothing waits, and what armed it may not have come to its end
	if d.beginLocked(); d.broken.is.Load() && !d.stopping.Load() {
		d.againLocked()
	}
	quietly(func() { d.servedLocked(d.deps.Clock.Now()) }) // arms what was armed
	d.idleLocked()
}

// requestOf is a request of the batch, for its ID; an empty one where it has none yet.
func (b *batch) requestOf() *infer.Request {
	if len(b.Requests) == 1 {
		return b.Requests[0]
	}
	return &infer.Request{}
}

// spoil keeps what the batch's items are from being used for other requests.
func (b *batch) spoil() {
	for _, it := range b.items {
		it.spoilt = true // none of a null one is used again
	}
}
