package drive

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// Core decides: which requests are the next batch, on which instance, and what waits
// too long. queue.Core fits it, and sequence's own. It is pure: the driver serializes
// its calls and tells it the time.
type Core interface {
	// Full says that adding e would exceed a limit.
	Full(e *queue.Entry) bool
	// Add takes an entry in; Remove takes a waiting one out.
	Add(e *queue.Entry)
	Remove(e *queue.Entry)
	// Expire takes out one entry that waited too long and is to be rejected; nil: none.
	Expire(now int64) *queue.Entry
	// Any takes out any waiting entry; nil: none is left.
	Any() *queue.Entry
	// Next takes out the next batch, appended to batch, and names the instance that gets
	// it; -1: nothing leaves now.
	Next(now int64, batch []*queue.Entry) ([]*queue.Entry, int)
	// Idle says that a request which comes now would leave at once.
	Idle() bool
	// Wake is when Next or Expire must be asked again though nothing else happens; 0: never.
	Wake() int64
	// Done and Lost end the batch of an instance, which is empty where another core formed
	// it; Again puts an entry of a lost batch back into the line, false: it may not be tried
	// again.
	Done(i int, batch []*queue.Entry)
	Lost(i int, life uint64, batch []*queue.Entry)
	Again(e *queue.Entry) bool
	// Down, Up, Hold, Can and Restore are those of queue.Instances.
	Down(i int)
	Up(i int)
	Hold(i int, held bool)
	Can(i int) bool
	Restore(from *queue.Instances)
	// Flush says that nothing will be added any more.
	Flush()

	// Admit refuses an entry, before it is added, for a reason of the core's own; nil: it
	// may be.
	Admit(e *queue.Entry) error
	// Verdict is what the request of an entry that Expire took out hears; nil: it waited
	// too long.
	Verdict(e *queue.Entry) error
	// Yields is the waiting entry that gives way to e in a full line, which is divided
	// between callers; nil: none does.
	Yields(e *queue.Entry) *queue.Entry
	// Repeat puts an entry whose batch ended, and whose request asks to be executed again,
	// back in front of what waits with it. False: it may not go on.
	Repeat(e *queue.Entry) bool
}

var _ Core = (*queue.Core)(nil)

// Stage is what a scheduler adds to its batches besides their requests' own inputs, and
// takes from their results besides its requests' outputs: controls and state of
// sequences. Its methods run with the driver's lock held and must return soon.
type Stage interface {
	// Begin lays out a batch in place of the driver: it sets b.Inputs. entries are those
	// of the batch in the order of b.Requests. An error fails the whole batch.
	Begin(b *infer.Batch, entries []*queue.Entry) error
	// End sees each result of a batch before any caller has its answer; the last one,
	// whose More is false, before the instance is free. It may drop outputs of res. It
	// must not keep res or what is under it without Retain.
	End(b *infer.Batch, entries []*queue.Entry, res *infer.Result)
}

// Config is what a Driver is told by its scheduler.
type Config struct {
	Model  schedule.Model
	Policy schedule.QueuePolicy
	Levels schedule.Levels
	// Make makes a core with every instance in service, and the stage that belongs to it;
	// nil: batches are their requests' inputs, row by row. It is called by New, and with the
	// lock held when a driver begins anew after a panic.
	Make func() (Core, Stage)
	// Batches says that requests share batches, so their rows are laid out together.
	Batches bool
	// Holds says that a batch may wait though an instance is free.
	Holds bool
	// Preserve hands answers over in the order in which requests were queued.
	Preserve bool
	// Sequences says that requests of sequences may be tried again when their worker
	// ended: their state is not with the worker.
	Sequences bool
}

// Driver is a schedule.Scheduler around a queue.Core.
type Driver struct {
	cfg     Config
	deps    schedule.Deps
	version string
	items   sync.Pool // *item
	timer   schedule.Timer
	staged  bool          // there is a stage, of each core
	idle    chan struct{} // closed when stopping and nothing is left

	stopping atomic.Bool  // set under mu
	settling atomic.Int64 // batches that ended and whose answers are being handed over
	writing  atomic.Int64 // lines on their way to the log

	mu       sync.Mutex
	core     Core
	stage    Stage // nil: none
	era      int   // counts cores
	broken   broken
	unserved unserved
	health   queue.Instances // what the core knows of them, but for who is held back
	waiting  waiting         // what the core has in line
	told     int             // of waiting, to the observer
	forming  forming         // batches of this event
	bugs     []error         // panics of this event that it goes on after
	limits   limits
	layout   layout
	order    order // with Preserve: queued and not yet answered
	inflight inflight
	armed    int64 // when timer fires; 0: not set
	isIdle   bool
	scratch  []*queue.Entry
	late     []*item // started, and failed while the lock was held; a reference each
}

var _ schedule.Scheduler = (*Driver)(nil)

// New makes a driver with every instance in service.
func New(cfg Config, deps schedule.Deps) (*Driver, error) {
	if err := deps.Check(); err != nil {
		return nil, err
	}
	d := &Driver{
		cfg:     cfg,
		deps:    deps,
		version: strconv.FormatInt(cfg.Model.Version, 10),
		idle:    make(chan struct{}),
		health:  queue.NewInstances(len(deps.Executors)),
		layout:  layout{memory: deps.Memory, maxRows: max(cfg.Model.MaxBatchSize, 1)},
	}
	d.unserved.wait, d.broken.changed = deps.WorkerWait, deps.Changed
	if d.core, d.stage = cfg.Make(); d.stage != nil {
		d.layout.memory = nil // the stage lays batches out
		d.staged = true
	}
	d.items.New = func() any {
		it := &item{d: d, wake: make(chan struct{}, 1)}
		it.Owner = it
		return it
	}
	d.timer = deps.Clock.NewTimer(d.fire)
	if err := d.limit(); err != nil {
		return nil, err
	}
	return d, nil
}

// Do is Scheduler.Do. Its errors: Unavailable with reason queue_full, queue_timeout,
// memory_full, stopping or worker_lost; Cancelled; what the model or send said.
// A request whose Do returned an error may still be read by an instance: its struct
// and its tensors' descriptions must not be used again for another request.
func (d *Driver) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	return d.DoOf(ctx, req, send, nil)
}

// DoOf is Do of a request whose entry the core gets with a Group.
func (d *Driver) DoOf(ctx context.Context, req *infer.Request, send infer.SendFunc, group any) error {
	it, err := d.begin(ctx, req)
	if err != nil {
		return err
	}
	it.Group = group
	it.waiter.send = send
	it.to, it.awaited = &it.waiter, true
	if err = d.enqueue(it); err != nil {
		return err
	}
	return d.await(it)
}

// begin makes an item, which is given a sink and then to enqueue. It has two references: of its
// request until the sink's Done, and of who watches its caller's context.
func (d *Driver) begin(ctx context.Context, req *infer.Request) (*item, error) {
	if ctx.Err() != nil {
		return nil, left(ctx, req)
	}
	it := d.items.Get().(*item)
	it.reset(req, 2)
	it.ctx = ctx
	if err := d.prepare(it); err != nil {
		d.drop(it)
		return nil, err
	}
	return it, nil
}

// enqueue puts an item into the line: its answers may come at once. An error is its end.
func (d *Driver) enqueue(it *item) error {
	var n news
	err := d.queue(it, &n)
	d.carry(&n)
	if n.fault != nil && !n.had {
		err = errFault(it.req)
	}
	if err != nil {
		d.drop(it)
	}
	return err
}

// drop gives back an item that was never in the line.
func (d *Driver) drop(it *item) {
	d.layout.freePrivate(it)
	it.refs.Store(1)
	d.recycle(it)
}

// end forgets an item whose request has its end, and takes the request's reference. final says
// that it had its last answer; else its caller is gone.
func (d *Driver) end(it *item, final bool) {
	if final {
		d.finish(it)
	} else {
		d.leave(it)
	}
	if it.watched != nil && it.watched.Unwatch(it) || it.stop != nil && it.stop() {
		d.recycle(it)
	}
	d.recycle(it)
}

func (d *Driver) queue(it *item, n *news) error {
	d.mu.Lock()
	defer d.unlock(n)
	n.item = it
	now := d.deps.Clock.Now()
	it.At = now
	it.req.Times.QueueStart = now
	it.Deadline = 0
	it.Level = d.cfg.Levels.Of(it.req)
	policy := d.cfg.Levels.Policy(it.Level, &d.cfg.Policy)
	if wait := policy.Wait(it.req); wait > 0 {
		it.Deadline = arrived(it.req, now) + int64(wait)
		if it.Deadline <= now && policy.Set && policy.TimeoutAction == schedule.Reject {
			return errExpired()
		}
	}
	it.Caller, it.Weight = it.req.Caller, it.req.Weight
	rival, err := d.admitLocked(it)
	if err != nil {
		return err
	}
	d.displaceLocked(rival)
	d.waiting.add(it)
	n.had = true
	if d.cfg.Preserve {
		d.order.add(it)
	}
	d.core.Add(&it.Entry)
	if it.req.Burst == nil || !it.req.Burst.Add(d, now) {
		d.nextLocked(now)
	}
	n.whole = true
	return nil
}

// arrived is when the timeout of a request began: when it was received whole. What validation
// and a cache took of it is lost even where an instance is free.
func arrived(req *infer.Request, now int64) int64 {
	if at := req.Times.RequestStart; at > 0 && at < now {
		return at
	}
	return now
}

// Dispatch is infer.Dispatcher's: the burst that requests were read in is over.
func (d *Driver) Dispatch() {
	var n news
	d.next(&n)
	d.carry(&n)
}

func (d *Driver) next(n *news) {
	d.mu.Lock()
	defer d.unlock(n)
	d.nextLocked(d.deps.Clock.Now())
}

// admitLocked readies an item for the line, or refuses it. rival gives way to it; nil:
// there is room.
func (d *Driver) admitLocked(it *item) (rival *item, err error) {
	switch {
	case d.stopping.Load():
		return nil, d.stoppingError(it.req)
	case d.unserved.is.Load():
		return nil, d.errUnserved(it.req)
	case d.core.Full(&it.Entry):
		if rival = d.yields(it); rival == nil {
			// Source: PolicyQueue::Enqueue of the original's scheduler_utils.cc.
			return nil, infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "%sExceeds maximum queue size", it.req.Prefix())
		}
	}
	if err := d.core.Admit(&it.Entry); err != nil {
		return nil, err
	}
	alone := !d.cfg.Batches || (!d.cfg.Holds && it.req.Burst == nil && d.core.Idle())
	if err := d.layout.place(it, alone); err != nil {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "%sno memory for the request: %w", it.req.Prefix(), err)
	}
	return rival, nil
}

func (d *Driver) stoppingError(req *infer.Request) error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "%smodel '%s' version %s is stopping", req.Prefix(),
		d.cfg.Model.Name, d.version)
}

// nextLocked forms every batch that can leave and sets the timer for what waits.
func (d *Driver) nextLocked(now int64) {
	if d.limits.to != nil {
		d.shareLocked(now)
		return
	}
	for d.formLocked(now) {
	}
}

// fire is the timer: queue timeouts and the end of delays.
func (d *Driver) fire() {
	var n news
	d.expire(&n)
	d.carry(&n)
}

func (d *Driver) expire(n *news) {
	d.mu.Lock()
	defer d.unlock(n)
	d.armed = 0
	now := d.deps.Clock.Now()
	if d.broken.is.Load() && !d.stopping.Load() {
		if d.beginLocked(); d.broken.is.Load() {
			d.againLocked()
		}
	}
	for e := d.core.Expire(now); e != nil; e = d.core.Expire(now) {
		d.failLocked(e.Owner.(*item), d.expired(e))
	}
	d.nextLocked(now)
	d.servedLocked(now)
	d.idleLocked()
}

// failLocked answers an item that the core has let go of, and that is in no batch. It is among
// those that wait until its memory is given back, so that it hears of a panic there.
func (d *Driver) failLocked(it *item, err error) {
	d.layout.release(it)
	d.waiting.remove(it)
	d.pushLocked(it, part{err: err, final: true}, !d.cfg.Preserve)
	if d.cfg.Preserve {
		d.order.advance()
	}
}

// pushLocked hands a part over; a started item is told of it once the lock is free.
func (d *Driver) pushLocked(it *item, p part, wake bool) bool {
	started := !it.awaited // one that is awaited may be another's once it has its part
	ok := it.push(p, wake)
	if ok && started {
		it.refs.Add(1)
		d.late = append(d.late, it)
	}
	return ok
}

// InstanceDown is Scheduler.InstanceDown.
func (d *Driver) InstanceDown(i int) { d.instance(i, false) }

// InstanceUp is Scheduler.InstanceUp.
func (d *Driver) InstanceUp(i int) { d.instance(i, true) }

func (d *Driver) instance(i int, up bool) {
	if i < 0 || i >= len(d.deps.Executors) {
		return
	}
	var n news
	d.turned(i, up, &n)
	d.carry(&n)
}

func (d *Driver) turned(i int, up bool, n *news) {
	d.mu.Lock()
	defer d.unlock(n)
	if up {
		d.health.Up(i)
		d.core.Up(i)
	} else {
		d.health.Down(i)
		d.core.Down(i)
		d.withdrawLocked(i)
	}
	now := d.deps.Clock.Now()
	d.nextLocked(now) // a core may refuse what waits for one that is down
	d.servedLocked(now)
}

// Ready is Scheduler.Ready.
func (d *Driver) Ready() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.health.Ready()
}

// Pending is Scheduler.Pending.
func (d *Driver) Pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting.n
}

// Drain is Scheduler.Drain. It returns ctx's cause when requests had to be failed.
func (d *Driver) Drain(ctx context.Context) error {
	var n news
	d.stop(&n)
	d.carry(&n)
	select {
	case <-d.idle:
		d.timer.Stop()
		d.leaveLimits()
		return nil
	case <-ctx.Done():
	}
	failed := d.abort()
	d.leaveLimits()
	if failed > 0 {
		return infer.Errorf(infer.Cancelled, "model '%s' version %s: %d requests failed while stopping: %w", d.cfg.Model.Name,
			d.version, failed, context.Cause(ctx))
	}
	return nil
}

func (d *Driver) stop(n *news) {
	d.mu.Lock()
	defer d.unlock(n)
	d.stopping.Store(true)
	d.core.Flush()
	d.nextLocked(d.deps.Clock.Now())
	d.idleLocked()
}

// abort fails whatever is left and counts it.
func (d *Driver) abort() int {
	var n news
	failed, cancels := d.failAll(&n)
	d.carry(&n)
	for _, b := range cancels {
		d.cancelLeavers(b)
	}
	return failed
}

// failAll also gives back the batches that instances are to hear about.
func (d *Driver) failAll(n *news) (failed int, cancels []*batch) {
	d.mu.Lock()
	defer d.unlock(n)
	d.timer.Stop()
	failed = d.waiting.n
	for b := d.inflight.head; b != nil; b = b.next {
		for _, it := range b.items {
			if _, done := it.state(); done || it.left {
				continue
			}
			if d.pushLocked(it, part{err: d.stoppingError(it.req), final: true}, true) {
				failed++
				it.left = true
				b.leavers.Add(1)
			}
		}
		if b.posted.Load() {
			cancels = append(cancels, b)
		}
	}
	for e := d.core.Any(); e != nil; e = d.core.Any() {
		it := e.Owner.(*item)
		d.failLocked(it, d.stoppingError(it.req))
	}
	d.idleLocked()
	return failed, cancels
}

func (d *Driver) idleLocked() {
	if d.isIdle || !d.stopping.Load() {
		return
	}
	if d.waiting.n == 0 && d.inflight.head == nil && d.settling.Load() == 0 {
		d.isIdle = true
		close(d.idle)
	}
}

// left is the error of a caller that went away.
func left(ctx context.Context, req *infer.Request) error {
	cause := context.Cause(ctx)
	reason := infer.ReasonCancelled
	if ctx.Err() == context.DeadlineExceeded {
		reason = infer.ReasonDeadline
	}
	return infer.Refusef(infer.Cancelled, reason, "%srequest cancelled: %w", req.Prefix(), cause)
}

// logLost is called with the lock held.
func (d *Driver) logLost(it *item) {
	log, id, age := d.deps.Log, it.req.ID, time.Duration(d.deps.Clock.Now()-it.At)
	d.aside(func() {
		log.Error("request refused: two workers ended under it", slog.String("request_id", id),
			slog.String("model", d.cfg.Model.Name), slog.String("version", d.version), slog.Duration("age", age))
	})
}
