package drive

import "github.com/sluice-serve/sluice/infer"

// post gives batches to their instances, without the lock.
func (d *Driver) post(b *batch) {
	for b != nil {
		next := b.post
		b.post = nil
		b = joined(d.postOne(b), next)
	}
	d.flushLimits()
}

// postOne gives a batch to its instance, or ends it. What that has formed is to be posted next.
func (d *Driver) postOne(b *batch) (formed *batch) {
	if b.fault == nil && d.execute(b) {
		return nil
	}
	d.step(func() { formed = b.failed() })
	return formed
}

// joined is two lists of batches as one.
func joined(a, b *batch) *batch {
	if a == nil {
		return b
	}
	last := a
	for last.post != nil {
		last = last.post
	}
	last.post = b
	return a
}

func (d *Driver) cancelLeavers(b *batch) {
	d.mu.Lock()
	var gone []int
	if !b.ended {
		for i, it := range b.items {
			if it.left {
				gone = append(gone, i)
			}
		}
	}
	d.mu.Unlock()
	for _, i := range gone {
		d.cancel(b, i)
	}
}

// execute gives a batch to its instance. A caller that left between the batch's forming and its
// posting is cancelled after it. False: it panicked, and the batch is to end. Results may come
// all the same, so its items are not used again.
func (d *Driver) execute(b *batch) (ok bool) {
	defer func() {
		if !ok {
			d.log("an instance met a fault: its batch is refused", infer.Recovered(recover()))
			ok = !b.spoilLive()
		}
	}()
	d.deps.Executors[b.instance].Execute(&b.Batch)
	b.posted.Store(true)
	if b.leavers.Load() > 0 {
		d.cancelLeavers(b)
	}
	return true
}

// spoilLive is spoil, of a batch that then is to end. false: it has ended, and its items may
// be others' already.
func (b *batch) spoilLive() bool {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.ended {
		return false
	}
	b.fault = errFault(b.requestOf())
	b.spoil()
	return true
}

func (d *Driver) cancel(b *batch, index int) {
	defer d.caught("an instance met a fault")
	d.deps.Executors[b.instance].Cancel(&b.Batch, index)
}
