package drive

import "github.com/sluice-serve/sluice/infer"

// A worker may say of a freed batch that it reads the inputs no more (infer.Result.InputsRead).
// Then the batch gives back what it has for them and what the driver has copied, and each request
// whose caller waits gives back its own reference: that is done where answers are handed over,
// so that a caller who takes one, leaves, or has his end never does so at the same time. Requests
// with tensors in clients' memory keep theirs to the end, since outputs may still go there, and so
// does the batch for requests that have ended before. None of the batch is executed again.

// inputsRead gives back the inputs. A second one, and that of a batch that was not freed, does
// nothing.
func (b *batch) inputsRead() {
	var n news
	mems := b.letInputsGo(&n)
	b.d.carry(&n)
	for _, m := range mems {
		m.Release()
	}
}

// letInputsGo also gives the batch's references that are to be released.
func (b *batch) letInputsGo(n *news) (mems []*infer.Buffer) {
	d := b.d
	d.mu.Lock()
	defer d.unlock(n)
	if !b.ended && b.freed && !b.read {
		b.read = true
		for i, it := range b.items {
			if it.null {
				continue
			}
			d.layout.release(it)
			if b.tellReadLocked(it) {
				mems = append(mems, b.mems[i])
				b.mems[i] = nil
			}
		}
	}
	n.whole = true
	return mems
}

// tellReadLocked has who hands the request's answers over give its inputs back; false: the
// batch keeps them.
func (b *batch) tellReadLocked(it *item) bool {
	d := b.d
	if !it.pushRead(!d.cfg.Preserve) {
		return false
	}
	b.Woke = true
	if !it.awaited {
		it.refs.Add(1)
		d.late = append(d.late, it)
	}
	return true
}

// pushRead hands over that the inputs are read no more. Until the caller has his last part or has left,
// which takes mu, the request is there to be read.
func (it *item) pushRead(wake bool) bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.gone || it.done || it.req.Placed() {
		return false
	}
	it.parts.add(part{read: true})
	if wake && it.awaited {
		it.signal()
	}
	return true
}
