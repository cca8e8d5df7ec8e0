package drive

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// await takes the item's answers and sends them, on the caller's goroutine.
func (d *Driver) await(ctx context.Context, it *item, send infer.SendFunc) error {
	var room [2]part
	done := ctx.Done()
	for {
		select {
		case <-it.wake:
		case <-done:
			req := it.req
			d.end(it, false)
			return left(ctx, req)
		}
		parts := it.take(room[:0])
		for i := range parts {
			final, err := d.answer(it, &parts[i], send)
			if err == nil && !final {
				continue
			}
			for k := i + 1; k < len(parts); k++ {
				parts[k].mem.Release()
			}
			d.end(it, final)
			return err
		}
	}
}

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

// answer sends one part. final says that no other follows. A panic is an error, so that
// what follows is told that the caller has gone.
func (d *Driver) answer(it *item, p *part, send infer.SendFunc) (final bool, err error) {
	over := false
	defer func() {
		if !over {
			final, err = p.final, infer.Recovered(recover())
			p.mem.Release()
		}
	}()
	resp, err := d.reply(it, p)
	if err == nil {
		err = send(resp)
	}
	over = true
	return p.final, err
}

// reply makes the response of a part, which has the part's reference to memory.
func (d *Driver) reply(it *item, p *part) (resp *infer.Response, err error) {
	if p.batch != nil {
		t := &it.req.Times
		t.ComputeStart, t.ComputeInputEnd = p.times.start, p.times.inputEnd
		t.ComputeOutputStart, t.ComputeEnd = p.times.outputStart, p.times.end
		t.BatchRows = p.times.rows
	}
	if p.err != nil {
		p.mem.Release()
		p.mem = nil
		return nil, p.err
	}
	if resp, err = d.response(it, p); err != nil {
		p.mem.Release()
		p.mem = nil
		return nil, err
	}
	resp.ID, resp.Model, resp.Version = it.req.ID, d.cfg.Model.Name, d.version
	resp.Final, resp.Memory = p.final, p.mem
	p.mem = nil
	return resp, nil
}

// cutResponse is a response with room for its outputs.
type cutResponse struct {
	infer.Response
	room [2]infer.Tensor
}

func (d *Driver) response(it *item, p *part) (*infer.Response, error) {
	if p.result == nil {
		if p.resp == nil {
			return &infer.Response{}, nil
		}
		p.resp.Outputs = asked(p.resp.Outputs, it.req.Outputs)
		return p.resp, nil
	}
	r := &cutResponse{}
	r.Outputs = r.room[:0]
	if p.batch.Rows == 0 && p.batch.cuts == nil {
		r.Outputs = asked(append(r.Outputs, p.result.Outputs...), it.req.Outputs)
		return &r.Response, nil
	}
	var err error
	for i := range p.result.Outputs {
		o := &p.result.Outputs[i]
		switch {
		case !wanted(o.Name, it.req.Outputs):
		case p.batch.cuts.Has(o.Name):
			var t infer.Tensor
			t, err = p.batch.cuts.Cut(o, p.index)
			r.Outputs = append(r.Outputs, t)
		case p.batch.Rows == 0:
			r.Outputs = append(r.Outputs, *o)
		default:
			r.Outputs, err = infer.Split(r.Outputs, p.result.Outputs[i:i+1], p.batch.Rows, p.first, it.Rows)
		}
		if err != nil {
			return nil, err
		}
	}
	return &r.Response, nil
}

func wanted(name string, outputs []infer.RequestedOutput) bool {
	for i := range outputs {
		if outputs[i].Name == name {
			return true
		}
	}
	return len(outputs) == 0
}

// asked drops the outputs that the request did not ask for.
func asked(have []infer.Tensor, outputs []infer.RequestedOutput) []infer.Tensor {
	if len(outputs) == 0 {
		return have
	}
	kept := have[:0]
	for i := range have {
		if wanted(have[i].Name, outputs) {
			kept = append(kept, have[i])
		}
	}
	return kept
}
