package drive

import (
	"errors"

	"github.com/sluice-serve/sluice/infer"
)

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

// news is what an event is to tell once the lock is free.
type news struct {
	posts *batch
	late  []*item // started, and failed while the lock was held; a reference each
	delta int     // of the waiting ones
	item  *item   // that was being queued
	had   bool    // it was queued: it hears of a fault as all that wait do
	whole bool    // it ended without a panic; false: it may have, too
	fault error   // the panic that ended the event
	bugs  []error // others, for the log
	turn  func()  // is to be told that what Fault says has changed; nil: it hasn't
}

// unlock ends every event: it gives the lock back and takes out what the event has formed.
// It must be deferred itself, as the panic of an event ends here.
func (d *Driver) unlock(n *news) {
	if !n.whole {
		if v := recover(); v != nil {
			n.fault = infer.Recovered(v)
			d.renewLocked(n)
		}
	}
	n.posts, d.forming = d.forming.first, forming{}
	if d.late != nil {
		n.late, d.late = d.late, nil
	}
	if d.bugs != nil {
		n.bugs, d.bugs = d.bugs, nil
	}
	if d.broken.turned {
		n.turn, d.broken.turned = d.broken.changed, false
	}
	n.delta = d.waiting.n - d.told
	d.told = d.waiting.n
	d.mu.Unlock()
}

// carry carries an event's news out: batches first.
func (d *Driver) carry(n *news) {
	d.post(n.posts)
	if n.delta != 0 {
		d.queued(n.delta)
	}
	if n.late != nil {
		d.tell(n.late)
	}
	d.carryRest(n)
}

// carryRest carries out what few events have to tell.
func (d *Driver) carryRest(n *news) {
	if n.met() {
		d.logBugs(n)
	}
	if n.turn != nil {
		d.turn(n.turn)
	}
}

// met says that the event met a panic.
func (n *news) met() bool { return n.fault != nil || n.bugs != nil }

func (d *Driver) logBugs(n *news) {
	if n.fault != nil {
		d.log("a scheduler met a fault: what waited is refused, and it begins anew", n.fault)
	}
	for _, err := range n.bugs {
		d.log("a scheduler met a fault, and goes on", err)
	}
}

// log tells of a panic.
func (d *Driver) log(what string, err error) {
	var bug *infer.Bug
	if errors.As(err, &bug) {
		d.aside(func() {
			d.deps.Log.Error(what, "model", d.cfg.Model.Name, "version", d.version, "panic", bug.Value, "stack", string(bug.Stack))
		})
	}
}

// maxWriting is how many lines may be on their way to the log. What comes while so many are
// stuck there is not written: who causes it may do so for ever.
const maxWriting = 64

// aside writes to the log on a goroutine of its own: who reads the log may take his time, and
// others wait for this one.
func (d *Driver) aside(write func()) {
	if d.writing.Add(1) > maxWriting {
		d.writing.Add(-1)
		return
	}
	go quietly(func() {
		defer d.writing.Add(-1)
		write()
	})
}

// errFault is what requests hear that a panic has hit; the log has its stack once.
func errFault(req *infer.Request) error {
	return infer.Errorf(infer.Internal, "%sinternal error", req.Prefix())
}

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

// quietly is for what comes behind a panic and may meet the same fault: memory that it can't
// give back, or a line of the log, is lost, and nothing else.
func quietly(f func()) {
	defer func() { _ = recover() }()
	f()
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

// bugLocked is the error of a batch that a panic has hit, of which the driver goes on.
func (b *batch) bugLocked(v any) error {
	b.d.bugs = append(b.d.bugs, infer.Recovered(v))
	return errFault(b.requestOf())
}

// waiting are the items that the core has in line, in no order: what a panic must not lose.
type waiting struct {
	head *item
	n    int
}

func (w *waiting) add(it *item) {
	it.waits, it.lineBefore, it.lineNext = true, nil, w.head
	if w.head != nil {
		w.head.lineBefore = it
	}
	w.head = it
	w.n++
}

func (w *waiting) remove(it *item) {
	if !it.waits {
		return
	}
	if it.lineBefore != nil {
		it.lineBefore.lineNext = it.lineNext
	} else {
		w.head = it.lineNext
	}
	if it.lineNext != nil {
		it.lineNext.lineBefore = it.lineBefore
	}
	it.waits, it.lineBefore, it.lineNext = false, nil, nil
	w.n--
}

// The calls of what others gave us, without the lock. A panic of theirs goes no further.

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

// queued tells the observer how many more wait. What it doesn't take it is told at once again,
// with what came meanwhile, and then with the next event.
func (d *Driver) queued(delta int) {
	if d.deps.Observer == nil || d.tellQueued(delta) {
		return
	}
	if delta = d.untold(delta); delta != 0 && !d.tellQueued(delta) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told -= delta
	}
}

func (d *Driver) tellQueued(delta int) (told bool) {
	defer d.caught("an observer met a fault")
	d.deps.Observer.Queued(delta)
	return true
}

// untold is what is to be told now that a difference wasn't.
func (d *Driver) untold(delta int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	delta += d.waiting.n - d.told
	d.told = d.waiting.n
	return delta
}

// caught ends a panic of which nothing follows. It must be deferred itself.
func (d *Driver) caught(what string) {
	if v := recover(); v != nil {
		d.log(what, infer.Recovered(v))
	}
}
