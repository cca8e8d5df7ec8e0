package drive

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Turn waits, where answers keep the order of their requests, until all requests that
// were queued before have been answered: a request that is answered without the queue,
// out of the response cache, takes its turn here. Its error is that of a caller who left.
func (d *Driver) Turn(ctx context.Context, req *infer.Request) error {
	if !d.cfg.Preserve {
		return nil
	}
	it := d.items.Get().(*item)
	it.reset(req, 1)
	it.push(part{final: true}, false)
	d.mu.Lock()
	d.order.add(it)
	d.order.advance()
	d.mu.Unlock()
	defer d.recycle(it)
	select {
	case <-it.wake:
		return nil
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.order.remove(it)
	d.order.advance()
	d.mu.Unlock()
	return left(ctx, req)
}
