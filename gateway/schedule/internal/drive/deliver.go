package drive

import "github.com/sluice-serve/sluice/infer"

// claim takes the first part that nobody has sent yet, and the right to send it; again
// says that the caller has that right. Where the caller has left meanwhile, his error is
// the part.
func (it *item) claim(again bool) (p part, ok bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.over || it.busy && !again {
		return p, false
	}
	if again && it.ctx.Err() != nil {
		return part{err: left(it.ctx, it.req)}, true
	}
	p, it.busy = it.parts.take()
	it.over = p.final
	return p, it.busy
}

// deliver sends what was handed over to the item's sink, unless another goroutine is at it. It is
// called without locks, by who holds a reference: the caller that waits, or else who has handed
// the part over. What it returns is to be flushed.
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
		if p.read {
			it.req.ReleaseInputs()
			continue
		}
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
