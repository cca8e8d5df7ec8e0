package drive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// logged is a log that counts faults with their stacks.
type logged struct {
	slog.Handler
	faults, stacks atomic.Int64
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "fault") {
		return nil
	}
	l.faults.Add(1)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "stack" && strings.Contains(a.Value.String(), "panic_test.go") {
			l.stacks.Add(1)
		}
		return true
	})
	return nil
}

// fragile are collaborators that panic where they are told to, once.
type fragile struct {
	*memory
	*fake
	*counts
	at atomic.Pointer[string]
}

func (f *fragile) breaks(where string) {
	if at := f.at.Load(); at != nil && *at == where && f.at.CompareAndSwap(at, nil) {
		panic("broken: " + where)
	}
}

func (f *fragile) Alloc(n int64) ([]byte, error) { f.breaks("alloc"); return f.memory.Alloc(n) }
func (f *fragile) Free(b []byte)                 { f.breaks("free"); f.memory.Free(b) }
func (f *fragile) Queued(delta int)              { f.breaks("queued"); f.counts.Queued(delta) }
func (f *fragile) Execute(b *infer.Batch)        { f.breaks("execute"); f.fake.Execute(b) }
func (f *fragile) Executed(requests, rows int, c infer.ComputeTimes) {
	f.breaks("executed")
	f.counts.Executed(requests, rows, c)
}

func (f *fragile) Cancel(b *infer.Batch, i int) { f.breaks("cancel"); f.fake.Cancel(b, i) }

// Whatever is called panics once: each request ends once, at worst with an error, the panic
// is logged once with its stack, and the model serves on.
func TestPanicsOfCollaborators(t *testing.T) {
	for _, where := range []string{"alloc", "free", "queued", "execute", "executed", "cancel", "send", "done"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPanic(t, where) })
		})
	}
}

func testPanic(t *testing.T, where string) {
	log := &logged{}
	f := &fragile{memory: newMemory(1 << 20), fake: &fake{}, counts: &counts{}}
	d := deps(f, f, f)
	d.Log = slog.New(log)
	s := batcher(t, dynamic.Config{}, d)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var ends atomic.Int64
	ask := func(ctx context.Context, id string) {
		go func() { // the sink's fault is caught where it is called
			req := request(id, 1)
			to := &brittle{f: f, ended: func() { ends.Add(1) }}
			if !s.Start(ctx, req, to) {
				t.Error("not started")
			}
		}()
		synctest.Wait()
	}
	ask(ctx, "a") // an instance has it
	ask(t.Context(), "b")
	f.at.Store(&where)
	ask(t.Context(), "c")
	leave()
	synctest.Wait()
	for range 3 {
		for f.has() {
			f.answer(t)
			synctest.Wait()
		}
		ask(t.Context(), "d")
	}
	for f.has() {
		f.answer(t)
		synctest.Wait()
	}
	check(t, "the panic was met", f.at.Load() == nil, true)
	check(t, "ends", ends.Load(), 6)
	check(t, "faults in the log", log.faults.Load(), 1)
	check(t, "of them with a stack", log.stacks.Load(), 1)
	check(t, "pending", s.Pending(), 0)
	check(t, "queued", f.counts.queued.Load(), 0)
	if where != "free" {
		check(t, "memory", f.inUse(), 0)
	}
	last := start(t.Context(), s, request("e", 1))
	synctest.Wait()
	f.answer(t)
	check(t, "afterwards", last.wait(t), nil)
	check(t, "drain", s.Drain(t.Context()), nil)
}

// moody is an observer that panics now and then; it has counted nothing then.
type moody struct {
	counts
	odds, faults atomic.Int64
}

func (m *moody) may() {
	if n := m.odds.Load(); n > 0 && rand.Int64N(n) == 0 {
		m.faults.Add(1)
		panic("moody: observer")
	}
}

func (m *moody) Queued(delta int) { m.may(); m.counts.Queued(delta) }
func (m *moody) Executed(requests, rows int, c infer.ComputeTimes) {
	m.may()
	m.counts.Executed(requests, rows, c)
}

// An observer that panics at random has every difference of what waits sooner or later: it
// knows how many wait whenever it is told of anything without a panic, and at the end.
func TestMoodyObserver(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			const callers, each = 16, 25
			obs, f := &moody{}, &fake{}
			s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), obs, f))
			f.executed = func(b *infer.Batch) {
				go func() {
					time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
					b.Deliver(echo(b))
				}()
			}
			obs.odds.Store(3)
			var asking sync.WaitGroup
			for c := range callers {
				asking.Go(func() {
					for range each {
						if err := askOnce(t, s, string(rune('a'+c))); err != nil && infer.CodeOf(err) != infer.Cancelled {
							t.Error(err)
						}
					}
				})
			}
			asking.Wait()
			synctest.Wait()
			obs.odds.Store(0)
			check(t, "the last one", s.Do(t.Context(), request("z", 1), drop), nil)
			check(t, "pending", s.Pending(), 0)
			check(t, "queued", obs.queued.Load(), 0)
			if obs.faults.Load() == 0 {
				t.Error("nothing was tried")
			}
			// an observer that is always ill hears of everything once it is well
			obs.odds.Store(1)
			waits := start(t.Context(), s, request("y", 1))
			check(t, "while it is ill", waits.wait(t), nil)
			obs.odds.Store(0)
			check(t, "the last one", s.Do(t.Context(), request("z", 1), drop), nil)
			check(t, "queued", obs.queued.Load(), 0)
			check(t, "drain", s.Drain(t.Context()), nil)
		})
	}
}

func (f *fake) has() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended < len(f.batches)
}

// brittle is a sink that panics where it is told to.
type brittle struct {
	f     *fragile
	ended func()
	over  bool
}

func (*brittle) Large(*infer.Response) bool { return false }

func (b *brittle) Send(r *infer.Response) error {
	defer r.Memory.Release()
	b.f.breaks("send")
	return nil
}

func (b *brittle) Done(error) infer.Flusher {
	if b.over {
		panic("a second end")
	}
	b.over = true
	b.ended()
	b.f.breaks("done")
	return nil
}

// cracked is a core that panics before or after whatever it does, now and then. Its books
// are of no use any more then, and it lies from then on.
type cracked struct {
	*queue.Core
	odds *atomic.Int64 // one call in so many; 0: none
	used bool          // a new one is whole
	hurt bool
}

func (c *cracked) may(what string) {
	if c.used = c.used || what == "full"; !c.used {
		return
	}
	if n := c.odds.Load(); n > 0 && rand.Int64N(n) == 0 {
		c.hurt = true
		panic("cracked: " + what)
	}
	if c.hurt {
		panic("a core is asked again after a panic: " + what)
	}
}

func (c *cracked) Full(e *queue.Entry) bool { c.may("full"); return c.Core.Full(e) }
func (c *cracked) Add(e *queue.Entry)       { c.may("add"); c.Core.Add(e); c.may("added") }
func (c *cracked) Remove(e *queue.Entry)    { c.may("remove"); c.Core.Remove(e); c.may("removed") }
func (c *cracked) Any() *queue.Entry        { c.may("any"); return c.Core.Any() }
func (c *cracked) Idle() bool               { c.may("idle"); return c.Core.Idle() }
func (c *cracked) Wake() int64              { c.may("wake"); return c.Core.Wake() }
func (c *cracked) Again(e *queue.Entry) bool {
	c.may("again")
	defer c.may("put back")
	return c.Core.Again(e)
}
func (c *cracked) Down(i int)            { c.may("down"); c.Core.Down(i) }
func (c *cracked) Up(i int)              { c.may("up"); c.Core.Up(i) }
func (c *cracked) Hold(i int, held bool) { c.may("hold"); c.Core.Hold(i, held) }
func (c *cracked) Can(i int) bool        { c.may("can"); return c.Core.Can(i) }
func (c *cracked) Flush()                { c.may("flush"); c.Core.Flush() }
func (c *cracked) Restore(from *queue.Instances) {
	c.used = true // by one that begins anew
	c.may("restore")
	c.Core.Restore(from)
}
func (c *cracked) Expire(t int64) *queue.Entry {
	c.may("expire")
	e := c.Core.Expire(t)
	if e != nil {
		c.may("expired")
	}
	return e
}

func (c *cracked) Next(now int64, batch []*queue.Entry) ([]*queue.Entry, int) {
	c.may("next")
	batch, i := c.Core.Next(now, batch)
	if i >= 0 {
		c.may("taken")
	}
	return batch, i
}

func (c *cracked) Done(i int, batch []*queue.Entry) {
	c.may("done")
	c.Core.Done(i, batch)
	c.may("settled")
}

func (c *cracked) Lost(i int, life uint64, batch []*queue.Entry) {
	c.may("lost")
	c.Core.Lost(i, life, batch)
	c.may("settled")
}

// shaky is a stage that panics now and then.
type shaky struct{ odds *atomic.Int64 }

func (s shaky) may(what string) {
	if n := s.odds.Load(); n > 0 && rand.Int64N(n) == 0 {
		panic("shaky: " + what)
	}
}

func (s shaky) Begin(b *infer.Batch, _ []*queue.Entry) error {
	s.may("begin")
	for i := range b.Requests[0].Inputs {
		in := infer.BatchInput{Name: b.Requests[0].Inputs[i].Name, Datatype: b.Requests[0].Inputs[i].Datatype}
		for _, r := range b.Requests {
			in.Segments = append(in.Segments, r.Inputs[i].Data)
		}
		in.Shape = []int64{int64(b.Rows), b.Requests[0].Inputs[i].Shape[1]}
		b.Inputs = append(b.Inputs, in)
	}
	return nil
}

func (s shaky) End(*infer.Batch, []*queue.Entry, *infer.Result) { s.may("end") }

// crew are instances that answer after a while, and now and then lose their worker. No two
// batches are on one at a time, whatever became of the core that knew of the first.
type crew struct {
	t    *testing.T
	s    *drive.Driver
	i    int
	busy atomic.Bool
	wg   *sync.WaitGroup
	seen *sync.Map
}

func (c *crew) Cancel(*infer.Batch, int) {}
func (*crew) Occupied(uint64) bool       { return false }
func (*crew) Place() (string, string)    { return "", "" }

func (c *crew) Execute(b *infer.Batch) {
	if c.busy.Swap(true) {
		c.t.Error("two batches on one instance")
	}
	c.wg.Go(func() {
		time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
		res := echo(b)
		lost := rand.IntN(30) == 0
		if lost {
			res = &infer.Result{Err: infer.ErrWorkerLost}
		}
		c.busy.Store(false)
		b.Deliver(res)
		if lost {
			c.s.InstanceDown(c.i)
			time.Sleep(50 * time.Microsecond)
			c.s.InstanceUp(c.i)
		}
	})
}

// cracks is what a driver whose core panics has besides.
type cracks struct{ preserve, staged, limited bool }

// TestPanicsOfCores lets any call of a core panic at random, and of a stage: every request
// ends once, rightly or with an error that says why, nothing leaks, and once the panics have
// ended everything is served.
func TestPanicsOfCores(t *testing.T) {
	for name, c := range map[string]cracks{
		"plain": {}, "ordered": {preserve: true}, "staged": {staged: true}, "limited": {limited: true},
		"all": {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) { testCracked(t, c) })
			}
		})
	}
}

// crackedDriver is a driver of crews, whose core and stage panic at the odds.
func crackedDriver(t *testing.T, d schedule.Deps, odds *atomic.Int64, kind cracks) (*drive.Driver, *sync.WaitGroup) {
	t.Helper()
	const instances = 2
	crews := make([]*crew, instances)
	execs := make([]infer.Executor, instances)
	var wg sync.WaitGroup
	for i := range crews {
		crews[i] = &crew{t: t, i: i, wg: &wg}
		execs[i] = crews[i]
	}
	d.Executors = execs
	if kind.limited {
		needs := ratelimit.Instance{Needs: []ratelimit.Need{{Name: "R", Count: 1}}}
		d.Limiter = limiter(ratelimit.New(nil), needs, needs) // one R, as no model needs more
	}
	policy := schedule.QueuePolicy{Set: true, Timeout: 400 * time.Microsecond}
	s, err := drive.New(drive.Config{Model: model(8), Policy: policy, Batches: true, Preserve: kind.preserve, Make: func() (drive.Core, drive.Stage) {
		if odds.Load() > 0 && rand.IntN(3) == 0 {
			panic("cracked: make")
		}
		core := &cracked{Core: queue.New(dynamic.NewCutter(8, nil, 0), drive.Lines(policy, schedule.Levels{}), instances), odds: odds}
		if kind.staged {
			return core, shaky{odds}
		}
		return core, nil
	}}, d)
	if err != nil {
		t.Fatal(err)
	}
	for i := range crews {
		crews[i].s = s
	}
	return s, &wg
}

func testCracked(t *testing.T, kind cracks) {
	const callers, each = 16, 25
	var odds atomic.Int64
	mem, obs, log := newMemory(64<<20), &counts{}, &logged{}
	d := deps(mem, obs)
	d.Log = slog.New(log)
	s, wg := crackedDriver(t, d, &odds, kind)
	odds.Store(60)
	var ok, failed atomic.Int64
	var asking sync.WaitGroup
	for c := range callers {
		asking.Go(func() {
			for k := range each {
				err := askOnce(t, s, fmt.Sprintf("%c%d", 'a'+c, k))
				switch {
				case err == nil:
					ok.Add(1)
				case infer.CodeOf(err) == infer.Internal, infer.CodeOf(err) == infer.Cancelled, infer.CodeOf(err) == infer.Unavailable:
					failed.Add(1)
				default:
					t.Errorf("error %v", err)
				}
			}
		})
	}
	asking.Wait()
	odds.Store(0)
	wg.Wait()
	synctest.Wait()
	if ok.Load() == 0 || log.faults.Load() == 0 {
		t.Errorf("%d answers, %d errors, %d faults: nothing was tried", ok.Load(), failed.Load(), log.faults.Load())
	}
	check(t, "stacks", log.stacks.Load(), log.faults.Load())
	for k := range 10 {
		if err := start(t.Context(), s, request(fmt.Sprint(k), 1)).wait(t); err != nil && !errors.Is(err, infer.ErrWorkerLost) {
			t.Errorf("afterwards: %v", err)
		}
	}
	wg.Wait()
	check(t, "pending", s.Pending(), 0)
	check(t, "queued", obs.queued.Load(), 0)
	check(t, "busy", s.Busy(), 0)
	check(t, "ready", s.Ready(), 2)
	check(t, "drain", s.Drain(t.Context()), nil)
	check(t, "memory", mem.inUse(), 0)
}

// askOnce asks in one of the ways that there are, maybe leaves early, and checks the answer.

func askOnce(t *testing.T, s schedule.Scheduler, id string) error {
	ctx := t.Context()
	if rand.IntN(4) == 0 {
		short, leave := context.WithTimeout(ctx, time.Duration(rand.IntN(100))*time.Microsecond)
		defer leave()
		ctx = short
	}
	req := request(id, 1+rand.IntN(3))
	var released atomic.Int64
	req.Memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { released.Add(1) })
	answers := 0
	err := do(ctx, t, s, req, func(r *infer.Response) error {
		answers++
		defer r.Memory.Release()
		return checkEcho(req, r)
	})
	if err == nil && answers != 1 {
		t.Errorf("%s: %d answers", id, answers)
	}
	req.Memory.Release()
	return err
}
