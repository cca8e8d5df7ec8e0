package drive

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/infer"
)

// batch is an infer.Batch with room for a small one, so that it is one allocation. It
// is not pooled: an Executor may still look at it after its end.
type batch struct {
	infer.Batch
	d        *Driver
	items    []*item
	mems     []*infer.Buffer // under the requests; one reference each, nil where it was given back
	instance int
	life     uint64
	era      int   // of the core that formed it
	stage    Stage // of that core; nil: none
	started  int64
	posted   atomic.Bool
	leavers  atomic.Int32 // callers that left

	// Guarded by Driver.mu.
	ended      bool
	freed      bool   // its instance takes other batches, and requests of it are open
	read       bool   // with freed: its inputs are read no more
	prev, next *batch // inflight
	post       *batch // the next one to be posted by whoever formed this
	nulls      int    // items that are null requests
	laid       bool   // nothing of it is missing
	fault      error  // why it can't be posted: the stage failed

	cuts  *ragged.Cuts      // of the outputs that are not cut by rows
	trace *infer.TraceBatch // nil: no spans are made of its requests

	roomItems    [4]*item
	roomMems     [4]*infer.Buffer
	roomRequests [4]*infer.Request
	roomInputs   [2]infer.BatchInput
	roomSegments [2][]byte
	roomDims     [6]int64
	roomPlaces   [2]infer.Place
	usedPlaces   int
}

// inflight is the list of batches that instances have.
type inflight struct{ head *batch }

func (l *inflight) add(b *batch) {
	b.next = l.head
	if l.head != nil {
		l.head.prev = b
	}
	l.head = b
}

func (l *inflight) remove(b *batch) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.head = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
}

// newBatch forms a batch of what the core has let go of; Driver.mu is held. It is among
// those of the event at once, so that a panic loses none of its requests.
func (d *Driver) newBatch(entries []*queue.Entry, instance int, now int64) {
	b := &batch{d: d, instance: instance, life: d.health.Life(instance), era: d.era, stage: d.stage, started: now}
	b.ID = d.deps.IDs.Add(1)
	b.items, b.mems = b.roomItems[:0], b.roomMems[:0]
	b.Requests = b.roomRequests[:0]
	if n := len(entries); n > len(b.roomItems) {
		b.items, b.mems = make([]*item, 0, n), make([]*infer.Buffer, 0, n)
		b.Requests = make([]*infer.Request, 0, n)
	}
	b.Deliver = b.deliver
	d.health.Take(instance)
	d.limits.offered = 0
	d.inflight.add(b)
	d.forming.add(b)
	rows := 0
	for i, e := range entries {
		it := e.Owner.(*item)
		it.refs.Add(1)
		it.req.Memory.Retain()
		b.mems = append(b.mems, it.req.Memory)
		b.items = append(b.items, it)
		b.Requests = append(b.Requests, it.req)
		if it.null {
			b.nulls++
		} else {
			d.waiting.remove(it)
			it.batch, it.index = b, i
			b.trace = b.trace.Join(it.req.Trace)
		}
		rows += it.Rows
		b.Attempt = max(b.Attempt, it.Losses)
	}
	if d.cfg.Model.MaxBatchSize > 0 {
		b.Rows = rows
	}
	b.fault = b.layOut(entries, rows)
	if d.waiting.n == 0 {
		d.layout.endFill(b.items[len(b.items)-1])
	}
	b.laid = true
}

// layOut sets the batch's inputs. Where others have a say in that, their panic fails the
// batch alone.
func (b *batch) layOut(entries []*queue.Entry, rows int) error {
	if b.stage == nil && b.d.cfg.Model.Ragged == nil {
		return b.lay(rows)
	}
	return b.layOutWith(b.d.cfg.Model.Ragged, entries, rows)
}

func (b *batch) layOutWith(plan *ragged.Plan, entries []*queue.Entry, rows int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = b.bugLocked(v)
		}
	}()
	if b.stage != nil {
		err = b.stage.Begin(&b.Batch, entries)
	} else {
		err = b.lay(rows)
	}
	if plan != nil && err == nil {
		err = b.describe(plan)
	}
	return err
}

// describe adds what the config asks for of the batch as a whole.
func (b *batch) describe(plan *ragged.Plan) (err error) {
	if b.Inputs, err = plan.Compute(b.Inputs, b.Requests); err == nil {
		b.cuts, err = plan.Cuts(b.Requests)
	}
	return err
}

// lay names the inputs' segments: neighbours in one slot are one.
func (b *batch) lay(rows int) error {
	lead := b.items[0]
	b.Inputs = b.roomInputs[:0]
	if n := len(lead.inputs); n > len(b.roomInputs) {
		b.Inputs = make([]infer.BatchInput, 0, n)
	}
	segments, dims := b.roomSegments[:0], b.roomDims[:0]
	for i := range lead.inputs {
		t := lead.inputs[i].tensor
		in := infer.BatchInput{Name: t.Name, Datatype: t.Datatype, Layout: lead.inputs[i].layout}
		from := len(segments)
		var last *slot
		start, end := 0, 0
		for k, it := range b.items {
			p := &it.inputs[i]
			n := len(p.data)
			if place := p.tensor.Place; place.Size > 0 {
				segments = append(segments, nil)
				in.Places = b.setPlace(in.Places, len(segments)-1-from, place)
				last = nil
				continue
			}
			if n == 0 || k > 0 && in.Layout == infer.Shared {
				continue
			}
			if p.slot != nil && p.slot == last && p.start == end {
				end += n
				segments[len(segments)-1] = last.block[start:end:end]
				continue
			}
			segments = append(segments, p.data)
			last, start, end = p.slot, p.start, p.start+n
		}
		in.Segments = segments[from:len(segments):len(segments)]
		if in.Places != nil {
			in.Places = b.setPlace(in.Places, len(in.Segments)-1, infer.Place{})
		}
		from = len(dims)
		dims = append(dims, t.Shape...)
		in.Shape = dims[from:len(dims):len(dims)]
		switch {
		case in.Layout == infer.Ragged:
			if err := b.d.cfg.Model.Ragged.Describe(&in, b.Requests); err != nil {
				return err
			}
		case in.Layout == infer.ByRow && b.Rows > 0 && len(in.Shape) > 0:
			in.Shape[0] = int64(rows)
		}
		b.Inputs = append(b.Inputs, in)
	}
	return nil
}

// setPlace sets the place of segment i, and makes places as long as it takes. One that was
// set stays.
func (b *batch) setPlace(places []infer.Place, i int, p infer.Place) []infer.Place {
	if places == nil && i == 0 && len(b.items) == 1 && b.usedPlaces < len(b.roomPlaces) {
		b.roomPlaces[b.usedPlaces] = p
		b.usedPlaces++
		return b.roomPlaces[b.usedPlaces-1 : b.usedPlaces : b.usedPlaces]
	}
	for len(places) <= i {
		places = append(places, infer.Place{})
	}
	if !p.IsZero() {
		places[i] = p
	}
	return places
}

// executedRows are those of requests; null requests don't count.
func (b *batch) executedRows() int { return max(b.Rows-b.nulls, 1) }

// hand gives each request its part of a result, and drops the result's own reference.
func (b *batch) hand(res *infer.Result, t times) {
	var fs flushers
	switch {
	case res.Err != nil:
	case res.Responses != nil:
		for i := range res.Responses {
			r := &res.Responses[i]
			if r.Index < 0 || r.Index >= len(b.items) {
				continue
			}
			if r.Repeat && r.Response == nil {
				continue
			}
			p := part{resp: r.Response, err: r.Err, final: b.isFinal(res, r), batch: b, times: t}
			if p.err == nil && p.resp != nil {
				res.Memory.Retain()
				p.mem = res.Memory
			}
			b.push(b.items[r.Index], p, &fs)
		}
	case res.Outputs != nil:
		first := 0
		for i, it := range b.items {
			res.Memory.Retain()
			b.push(it, part{result: res, mem: res.Memory, final: !res.More, first: first, index: i, batch: b, times: t}, &fs)
			first += it.Rows
		}
	}
	res.Memory.Release()
	fs.flush()
}

// push hands a part over. What a started item's sink wants flushed is added to fs.
func (b *batch) push(it *item, p part, fs *flushers) {
	waited := it.awaited // after push it may be another's
	b.Woke = b.Woke || waited
	if it.push(p, !b.d.cfg.Preserve) && !waited {
		fs.add(b.d.deliver(it))
	}
}

// isFinal says that no answer to the request follows. Only decoupled models may leave
// that open when their batch ends.
func (b *batch) isFinal(res *infer.Result, r *infer.RequestResult) bool {
	if r.Repeat {
		return false
	}
	return r.Response == nil || r.Response.Final || (!res.More && !b.d.cfg.Model.Decoupled)
}

// settle ends every request of the batch that is not tried again. A request that has its
// final answer may be another's already, so nothing of it is read here.
func (b *batch) settle(e *ending) {
	var fs flushers
	for i, it := range b.items {
		if e.again == nil || !e.again[i] {
			if _, done := it.state(); !done {
				b.push(it, part{err: b.endError(e, it), final: true, batch: b, times: e.times}, &fs)
			}
		}
	}
	fs.flush()
}

// letGo lets go of the batch's requests and their memory.
func (b *batch) letGo() {
	d := b.d
	d.advance()
	d.settling.Add(-1)
	if d.stopping.Load() {
		d.mu.Lock()
		d.idleLocked()
		d.mu.Unlock()
	}
	for i, it := range b.items {
		b.mems[i].Release()
		d.recycle(it)
	}
}

// endError is what a request hears whose batch ended without its final answer; nil
// stands for an end without an answer, which decoupled models may choose. One that asked to
// be executed again, and is not, hears that its answers so far are not the whole.
func (b *batch) endError(e *ending, it *item) error {
	m, res := &b.d.cfg.Model, e.res
	if res.Err != nil {
		if errors.Is(res.Err, infer.ErrWorkerLost) {
			return infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "%smodel '%s': %w", b.Requests[it.index].Prefix(), m.Name,
				res.Err)
		}
		return res.Err
	}
	if err := e.halted[it.index]; err != nil {
		return err
	}
	if e.early && asksAgain(res, it.index) {
		return infer.Errorf(infer.Internal, "%smodel '%s' could not be executed again for the rest of the answer", b.Requests[it.index].Prefix(), m.Name)
	}
	if sent, _ := it.state(); sent || m.Decoupled {
		return nil
	}
	return infer.Errorf(infer.Internal, "%smodel '%s' gave no answer", b.Requests[it.index].Prefix(), m.Name)
}

// advance wakes callers in order.
func (d *Driver) advance() {
	if d.cfg.Preserve {
		d.mu.Lock()
		d.order.advance()
		d.mu.Unlock()
	}
}

// timesAt puts what the worker measured between posting and return: its output phase
// ends now, and the way there and back counts as input.
func (b *batch) timesAt(now int64, c infer.ComputeTimes) times {
	t := times{start: b.started, end: now, rows: b.executedRows()}
	if c == (infer.ComputeTimes{}) {
		t.inputEnd, t.outputStart = t.start, t.end
		return t
	}
	t.outputStart = max(t.end-max(c.Output, 0), t.start)
	t.inputEnd = max(t.outputStart-max(c.Infer, 0), t.start)
	return t
}

func (t times) compute() infer.ComputeTimes {
	return infer.ComputeTimes{Input: t.inputEnd - t.start, Infer: t.outputStart - t.inputEnd, Output: t.end - t.outputStart}
}
