package admission

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// Limits are the limits of one gateway. It fits pipeline.Admission.
type Limits struct {
	table      table
	generation atomic.Pointer[generation]
	calls      sync.Pool // *call
	now        func() int64
	known      func(model string) bool
	log        *slog.Logger
	file       watched // Run's
	reloaded   func(error)

	mu      sync.Mutex
	tallies map[tallyKey]*tally
}

// Deps are what Limits work with.
type Deps struct {
	Log   *slog.Logger
	Now   func() int64 // nanoseconds that never go back and are never 0; nil: infer.Now
	Redis *Redis       // nil: limits are this gateway's own
	// Known says that there is such a model, ready or not; nil: of all names. It does not
	// block.
	Known func(model string) bool
	// Reloaded hears of each reading of the file that found it changed; nil: nobody asks.
	Reloaded func(error)
}

// New reads the file; "" limits nothing. Its error says all that is wrong. With Redis it
// starts a goroutine, which Stop ends.
func New(ctx context.Context, path string, deps Deps) (*Limits, error) {
	rules, file := &Rules{track: 1}, watched{}
	if path != "" {
		var err error
		if file, rules, err = watch(path, time.Now()); err != nil {
			return nil, err
		}
	}
	l, err := start(ctx, rules, deps)
	if err == nil {
		l.file = file
	}
	return l, err
}

// start makes limits of rules.
func start(ctx context.Context, rules *Rules, deps Deps) (*Limits, error) {
	l := &Limits{log: deps.Log, now: deps.Now, known: deps.Known, reloaded: deps.Reloaded, tallies: map[tallyKey]*tally{}}
	if l.now == nil {
		l.now = infer.Now
	}
	if l.known == nil {
		l.known = func(string) bool { return true }
	}
	if l.reloaded == nil {
		l.reloaded = func(error) {}
	}
	l.calls.New = func() any { return &call{} }
	l.table.meters = map[meterKey]*meter{}
	if deps.Redis != nil {
		link, err := deps.Redis.open(ctx, l)
		if err != nil {
			return nil, err
		}
		l.table.link = link
	}
	l.use(rules)
	return l, nil
}

// Waits fits pipeline.Patient: calls may wait for Redis.
func (l *Limits) Waits() bool { return l.table.link != nil }

// Stop ends what New started.
func (l *Limits) Stop(ctx context.Context) error {
	if l.table.link == nil {
		return nil
	}
	return l.table.link.close(ctx)
}

// use makes rules count from now on. What was measured under a name goes on counting.
func (l *Limits) use(r *Rules) {
	l.table.mu.Lock()
	l.table.most = 4 * r.track
	l.table.mu.Unlock()
	if old := l.generation.Swap(newGeneration(r)); old != nil {
		l.retire(old)
	}
}

// call is the record of one call, in Envelope.Admitted.
type call struct {
	account     *account // of what the envelope tells
	late        *account // of the model that the body named; nil: none
	opened      int64
	spent       int64 // bytes of the body that account and late were charged for
	bytes, more int64 // of bodies, held by account and by late
	shared      int64 // bytes of inputs in shared memory, which count as received
	refused     bool  // by Request
}

// amounts are what a call spends or holds, by kind. 0 asks whether anything is left.
type amounts [numKinds]int64

// skip is an amount that is not looked at.
const skip = -1

// find gives the account for a phase of a call, nil where no rule counts.
func (l *Limits) find(env *infer.Envelope, model string, p phase) *account {
	for {
		g := l.generation.Load()
		if len(g.rules.rules) == 0 && len(g.rules.weights) == 0 {
			return nil
		}
		key := accountKey{model: model, action: env.Action, phase: p, remote: env.Remote.Addr()}
		if a := l.account(g, env.Principal, key); a != nil {
			return a
		}
	}
}

// Open is pipeline.Admission: it charges the call, and the body as it was announced.
func (l *Limits) Open(ctx context.Context, env *infer.Envelope) error {
	p := whole
	if env.Model == "" && env.Action == infer.ActionInference {
		p = early
	}
	a := l.find(env, env.Model, p)
	if a == nil {
		return nil
	}
	env.Weight = a.weight
	c := l.calls.Get().(*call)
	*c = call{account: a}
	env.Admitted = c
	if len(a.uses) == 0 {
		return nil
	}
	if c.opened = env.Opened; c.opened == 0 {
		c.opened = l.now()
	}
	take := amounts{Requests: 1, Bytes: 0, Concurrency: 1, BytesInFlight: skip}
	if env.Streaming { // each request of it counts, when it comes
		take[Requests] = 0
	} else if env.BodySize >= 0 {
		take[Bytes], take[BytesInFlight] = announced(env.BodySize), env.BodySize
	}
	if err := l.enter(ctx, a, &take, c.opened); err != nil {
		l.release(env, c)
		return err
	}
	c.bytes, c.spent = max(take[BytesInFlight], 0), max(take[Bytes], 0)
	return nil
}

// announced is what a body of that size spends: nothing is asked for an empty one.
func announced(n int64) int64 {
	if n == 0 {
		return skip
	}
	return n
}

// Request is pipeline.Admission: it charges what only the body told, elements, the size
// of a body of unknown length, and all that depends on a model which the body named.
func (l *Limits) Request(ctx context.Context, req *infer.Request) error {
	env := req.Envelope
	c, ok := env.Admitted.(*call)
	if !ok {
		return nil
	}
	size, more := env.BodySize, inRegions(req)
	if size < 0 || env.Streaming {
		size, more = received(req), 0
	}
	size += more
	if a := c.account; a.kinds[Elements] || a.kinds[Bytes] || a.kinds[BytesInFlight] || env.Streaming && a.kinds[Requests] {
		take := amounts{Requests: skip, Bytes: skip, Elements: elements(req), Compute: skip, Concurrency: skip, BytesInFlight: skip}
		if env.BodySize < 0 || env.Streaming {
			take[Bytes] = announced(size)
		} else if more > 0 { // the body is charged
			take[Bytes], take[BytesInFlight] = more, more
		}
		if env.Streaming {
			take[Requests] = 1
		} else if env.BodySize < 0 {
			take[BytesInFlight] = size
		}
		if err := l.enter(ctx, a, &take, l.now()); err != nil {
			c.refused = c.refused || !env.Streaming
			return err
		}
		if !env.Streaming { // whose requests may come here side by side
			c.bytes, c.spent = c.bytes+max(take[BytesInFlight], 0), c.spent+max(take[Bytes], 0)
		}
	}
	if !env.Streaming {
		c.shared = inRegions(req)
	}
	if c.account.key.phase == early {
		return l.late(ctx, req, c, size)
	}
	return nil
}

// late charges what depends on the model, once the body has named it.
func (l *Limits) late(ctx context.Context, req *infer.Request, c *call, size int64) error {
	env := req.Envelope
	a := l.find(env, req.Model, late)
	if a == nil {
		return nil
	}
	if len(a.uses) == 0 {
		l.leave(a)
		return nil
	}
	take := amounts{Requests: 1, Bytes: announced(size), Elements: elements(req), Compute: 0, Concurrency: 1, BytesInFlight: size}
	if env.Streaming { // nothing is held for one request of many
		take[Concurrency], take[BytesInFlight] = skip, skip
	}
	err := l.enter(ctx, a, &take, l.now())
	if err != nil || env.Streaming || c.late != nil {
		c.refused = c.refused || err != nil && !env.Streaming
		l.leave(a)
		return err
	}
	c.late, c.more, c.spent = a, size, size
	return nil
}

// Close is pipeline.Admission: it gives back what was held, charges the time that the
// models took, and what of the body came in place of what was announced.
func (l *Limits) Close(env *infer.Envelope, end *infer.End) {
	c, ok := env.Admitted.(*call)
	if !ok {
		return
	}
	a, now := c.account, int64(0)
	took := computed(end.Request)
	settle := !env.Streaming && (a.kinds[Bytes] || c.late != nil && c.late.kinds[Bytes])
	switch {
	case end.Request != nil && end.Request.Times.RequestEnd > 0:
		now = end.Request.Times.RequestEnd // just taken, by the same clock
	case took > 0 || settle || a.kinds[Concurrency] || a.kinds[BytesInFlight] || c.late != nil:
		now = l.now()
	}
	if took > 0 {
		l.charge(a, Compute, took, now)
		if c.late != nil {
			l.charge(c.late, Compute, took, now)
		}
	}
	if settle {
		came := end.Received + c.shared
		if c.refused { // by limits: then it spends of none
			came = min(came, c.spent)
		}
		l.settle(a, c.spent, came, now)
		if c.late != nil {
			l.settle(c.late, c.spent, came, now)
		}
	}
	l.exit(a, c.bytes, now-c.opened)
	if c.late != nil {
		l.exit(c.late, c.more, now-c.opened)
		l.leave(c.late)
	}
	l.release(env, c)
}

// release forgets a call's record.
func (l *Limits) release(env *infer.Envelope, c *call) {
	env.Admitted = nil
	l.leave(c.account)
	c.account, c.late = nil, nil
	l.calls.Put(c)
}

// charge spends what was used already.
func (l *Limits) charge(a *account, k Kind, n, now int64) {
	if !a.kinds[k] {
		return
	}
	for i := range a.uses {
		if u := &a.uses[i]; u.limit.Kind == k && !u.peek {
			l.spent(u, n, now)
		}
	}
}

// exit gives back what an account's uses hold.
func (l *Limits) exit(a *account, bytes, took int64) {
	for i := range a.uses {
		u := &a.uses[i]
		switch u.limit.Kind {
		case Sequences: // they outlive the call
		case Concurrency:
			l.giveBack(u, 1, took)
		case BytesInFlight:
			if bytes > 0 {
				l.giveBack(u, bytes, took)
			}
		default:
			return // what is held comes first
		}
	}
}

// enter passes all uses of an account, or none.
func (l *Limits) enter(ctx context.Context, a *account, take *amounts, now int64) error {
	if u, wait := l.through(ctx, a, take, now); u != nil {
		return refusal(u, take[u.limit.Kind], wait, &a.key)
	}
	return nil
}

// through is enter; it gives the use that refuses, and when to come back.
func (l *Limits) through(ctx context.Context, a *account, take *amounts, now int64) (*use, int64) {
	p := patience{ctx: ctx}
	defer p.end()
	var passed []int // by shadowed limits alone: there is nothing to undo
	for i := range a.uses {
		u := &a.uses[i]
		n := u.ahead(take[u.limit.Kind])
		if n == skip || n == 0 && u.limit.Kind.held() {
			continue
		}
		wait, ok := l.pass(&p, u, n, now)
		if ok {
			continue
		}
		if u.rule.shadow {
			u.tally.shadowed.Add(1)
			if u.limit.Kind.held() {
				u.meter.force(n)
			} else {
				passed = append(passed, i)
			}
			continue
		}
		u.tally.refused.Add(1)
		for j := range i {
			if !slices.Contains(passed, j) {
				l.undo(&a.uses[j], a.uses[j].ahead(take[a.uses[j].limit.Kind]), now)
			}
		}
		if wait > 0 {
			wait = max(wait, leastWait)
		}
		return u, wait
	}
	return nil, 0
}

// pass spends or holds n. wait is when that may succeed; 0: never.
func (l *Limits) pass(p *patience, u *use, n, now int64) (wait int64, ok bool) {
	m := u.meter
	if u.limit.Kind.held() {
		return l.hold(p, u, n)
	}
	if u.peek {
		wait = l.peek(u, n, now)
		return wait, wait == 0
	}
	if m.shared != nil && l.table.link.up() {
		return l.draw(p, u, n, now)
	}
	wait = m.bucket.take(&u.limit.speed, now, u.limit.speed.cost(n))
	return wait, wait == 0
}

// hold holds n.
func (l *Limits) hold(p *patience, u *use, n int64) (wait int64, ok bool) {
	m, most := u.meter, u.limit.Most
	if n > most {
		return 0, false
	}
	if m.shared != nil && l.table.link.up() {
		ok = l.claim(p, u, n)
	} else {
		ok = m.counter.take(most, n)
	}
	if ok {
		return 0, true
	}
	return m.counter.wait(most), false
}

// undo takes back what pass did for a call that another limit refused.
func (l *Limits) undo(u *use, n, now int64) {
	switch {
	case n <= 0:
	case u.limit.Kind.held():
		l.giveBack(u, n, 0)
	case u.peek:
	case u.meter.shared != nil:
		l.returned(u, n, now)
	default:
		u.meter.refund(u.limit.speed.cost(n))
	}
}

// spent charges n that were used already.
func (l *Limits) spent(u *use, n, now int64) {
	u.meter.charge(now, u.limit.speed.cost(n))
	if u.meter.shared != nil {
		l.owed(u, n)
	}
}

// giveBack ends the holding of n.
func (l *Limits) giveBack(u *use, n, took int64) {
	u.meter.release(n, took)
	if s := u.meter.shared; s != nil && l.table.link.up() {
		l.released(u)
	}
}

// computed is the compute time of a request in microseconds: its part, by rows, of what
// its batch took.
func computed(req *infer.Request) int64 {
	if req == nil {
		return 0
	}
	t := &req.Times
	took := t.ComputeEnd - t.ComputeStart
	if took <= 0 || t.ComputeStart == 0 || t.CacheHit {
		return t.Abandoned / 1e3
	}
	if rows := int64(max(req.Rows, 1)); int64(t.BatchRows) > rows {
		took = took / int64(t.BatchRows) * rows
	}
	return max(took/1e3, 1)
}

// lookEvery is how often Run looks at the file.
const lookEvery = configfile.Period / 2

// Run follows the file until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	look, sweep := time.NewTicker(lookEvery), time.NewTicker(10*time.Second)
	defer look.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-look.C:
			l.follow(&l.file, time.Now())
		case <-sweep.C:
			l.sweep()
		case <-ctx.Done():
			return
		}
	}
}
