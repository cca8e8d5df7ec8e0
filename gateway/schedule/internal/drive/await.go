package drive

import "github.com/sluice-serve/sluice/infer"

// waiter is the sink of a request whose caller waits: its methods run on the caller's goroutine,
// which delivers the parts that it is woken for.
type waiter struct {
	send infer.SendFunc
	over bool
	err  error // once over: what Do returns
}

// Large is Sink's: the caller has nothing else to do.
func (*waiter) Large(*infer.Response) bool { return false }

// Send is Sink's.
func (w *waiter) Send(resp *infer.Response) error { return w.send(resp) }

// Done is Sink's.
func (w *waiter) Done(err error) infer.Flusher {
	w.over, w.err = true, err
	return nil
}

// await delivers to the item's waiter until its request has its end. It takes the reference of
// who watches the caller's context.
func (d *Driver) await(it *item) error {
	for done := it.ctx.Done(); !it.waiter.over; {
		select {
		case <-it.wake:
			d.deliver(it)
		case <-done:
			it.abandon()
		}
	}
	err := it.waiter.err
	d.recycle(it)
	return err
}
