package drive

// finish forgets an answered item.
func (d *Driver) finish(it *item) {
	if !d.cfg.Preserve {
		return
	}
	d.mu.Lock()
	d.order.remove(it)
	d.order.advance()
	d.mu.Unlock()
}

// leave takes an item out of wherever it is: its caller is gone.
func (d *Driver) leave(it *item) {
	var n news
	in, index := d.takeOut(it, &n)
	it.leave()
	d.carry(&n)
	if in != nil && in.posted.Load() {
		d.cancel(in, index)
	}
}

// takeOut gives back the batch that an instance has the item in; nil: none has.
func (d *Driver) takeOut(it *item, n *news) (in *batch, index int) {
	d.mu.Lock()
	defer d.unlock(n)
	d.order.remove(it)
	if it.waits {
		d.core.Remove(&it.Entry)
		d.waiting.remove(it)
		d.layout.release(it)
		d.nextLocked(d.deps.Clock.Now())
	} else if in = it.batch; in != nil {
		it.left = true
		index = it.index
		in.leavers.Add(1)
		it.req.Times.Abandoned = d.abandonedLocked(it, in)
	}
	d.order.advance()
	d.idleLocked()
	return in, index
}

// abandonedLocked is the time that an item's batch has run, of it the item's part by rows:
// instances go on though its caller has left, and who limits callers must know.
func (d *Driver) abandonedLocked(it *item, in *batch) int64 {
	if in.ended {
		return 0
	}
	return max(d.deps.Clock.Now()-in.started, 0) / int64(max(in.Rows, 1)) * int64(min(it.Rows, max(in.Rows, 1)))
}
