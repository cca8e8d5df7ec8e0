package drive

// An instance may be free before its batch has ended (infer.Result.Free). The batch then stays
// among those in flight with its requests, their memory and their callers, and Drain waits for
// it; but the core, the limiter and what is known of the instance's health have done with it.
// Its last result ends requests and frees nothing. Batches of a stage are freed by their last
// result alone: a sequence's next request needs what that brings.

// free makes the batch's instance take others while the batch stays open. A second one does
// nothing.
func (b *batch) free(now int64) {
	var n news
	b.freeInstance(now, &n)
	b.d.carry(&n)
}

func (b *batch) freeInstance(now int64, n *news) {
	d := b.d
	d.mu.Lock()
	defer d.unlock(n)
	if b.ended || b.freed || b.stage != nil {
		n.whole = true
		return
	}
	b.freed = true
	d.limits.ending = b.instance + 1
	entries := b.entriesLocked()
	if b.era != d.era {
		entries = nil // another core's
	}
	d.health.Done(b.instance)
	d.core.Done(b.instance, entries)
	d.freedLocked(b.instance, now)
	n.whole = true
}

// downLocked takes an instance out of service whose worker ended under a freed batch, unless
// it has come up again since. Batches that the instance has end on their own.
func (d *Driver) downLocked(i int, life uint64) {
	if d.health.Life(i) != life {
		return
	}
	d.health.Down(i)
	d.core.Down(i)
	d.withdrawLocked(i)
}
