package drive_test

import (
	"context"
	"log/slog"
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

// stillborn is a core that panics when a request is added, if told to, and then where a
// driver begins anew with it.
type stillborn struct {
	*queue.Core
	d *delivery
}

// delivery says where new cores break, and how often.
type delivery struct {
	add, often atomic.Int64
	where      string
}

func (d *delivery) breaks(where string) {
	if d.where == where && d.often.Add(-1) >= 0 {
		panic("stillborn: " + where)
	}
}

func (s stillborn) Add(e *queue.Entry) {
	if s.d.add.Add(-1) == 0 {
		panic("stillborn: add")
	}
	s.Core.Add(e)
}

func (s stillborn) Restore(from *queue.Instances) { s.d.breaks("restore"); s.Core.Restore(from) }
func (s stillborn) Hold(i int, held bool)         { s.d.breaks("hold"); s.Core.Hold(i, held) }
func (s stillborn) Flush()                        { s.d.breaks("flush"); s.Core.Flush() }

// A driver whose new core is no better than the one before lets go of its lock: requests hear
// of it, each tries again, and what instances have ends as ever.
func TestNewCoreFails(t *testing.T) {
	for _, where := range []string{"make", "restore", "hold"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNewCoreFails(t, where) })
		})
	}
}

func newStillborn(t *testing.T, born *delivery, d schedule.Deps) *drive.Driver {
	t.Helper()
	s, err := drive.New(drive.Config{Model: model(8), Batches: true, Make: func() (drive.Core, drive.Stage) {
		born.breaks("make")
		return stillborn{queue.New(dynamic.NewCutter(8, nil, 0), drive.Lines(schedule.QueuePolicy{}, schedule.Levels{}), 1), born}, nil
	}}, d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testNewCoreFails(t *testing.T, where string) {
	log, f, mem, obs := &logged{}, &fake{}, newMemory(1<<20), &counts{}
	d := deps(mem, obs, f)
	d.Log = slog.New(log)
	l := ratelimit.New(nil)
	d.Limiter = limiter(l, ratelimit.Instance{Needs: []ratelimit.Need{{Name: "R", Count: 1}}})
	news := 0
	d.Changed = func() { news++ }
	born := &delivery{where: where}
	s := newStillborn(t, born, d)
	ask := func(id string) *caller {
		c := start(t.Context(), s, request(id, 1))
		synctest.Wait()
		return c
	}
	first := ask("a")
	waits := ask("b")
	check(t, "fault", s.Fault(), nil)
	born.add.Store(1)
	born.often.Store(2) // the driver's own attempt, and that of the next request
	for i, code := range []infer.Code{infer.Internal, infer.Unavailable} {
		id := string(rune('c' + i))
		if c := ask(id); !c.finished() || infer.CodeOf(c.err) != code {
			t.Fatalf("%s: finished %v, %v", id, c.finished(), c.err)
		}
		check(t, "fault", infer.CodeOf(s.Fault()), infer.Internal)
	}
	check(t, "news", news, 1)
	check(t, "what waited", infer.CodeOf(waits.wait(t)), infer.Internal)
	check(t, "pending", s.Pending(), 0)
	check(t, "ready", s.Ready(), 1)
	s.InstanceDown(0)
	s.InstanceUp(0)
	f.answer(t)
	check(t, "what an instance had", first.wait(t), nil)
	last := ask("e")
	f.answer(t)
	check(t, "afterwards", last.wait(t), nil)
	check(t, "fault", s.Fault(), nil)
	check(t, "news", news, 2)
	check(t, "queued", obs.queued.Load(), 0)
	check(t, "busy", s.Busy(), 0)
	check(t, "memory", mem.inUse(), 0)
	check(t, "faults in the log", log.faults.Load(), 3)
	check(t, "drain", s.Drain(t.Context()), nil)
}

// A driver without a core tries again though no request comes, ever less often; when it stops,
// it doesn't.
func TestNewCoreIsTriedAgain(t *testing.T) {
	for _, often := range []int64{3, 1000} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			born := &delivery{where: "make"}
			began := time.Now()
			var healed atomic.Int64
			var s *drive.Driver
			d := deps(newMemory(1<<20), nil, f)
			d.Changed = func() {
				if s.Fault() == nil {
					healed.Store(int64(time.Since(began)))
				}
			}
			s = newStillborn(t, born, d)
			born.add.Store(1)
			born.often.Store(often)
			check(t, "the fault", infer.CodeOf(start(t.Context(), s, request("a", 1)).wait(t)), infer.Internal)
			time.Sleep(time.Hour)
			if tries := often - born.often.Load(); often == 1000 && (tries < 60 || tries > 70 || s.Fault() == nil) {
				t.Errorf("%d tries in an hour, fault %v", tries, s.Fault())
			}
			if often == 3 {
				check(t, "healed after", time.Duration(healed.Load()), (1+2+4)*time.Second)
				last := start(t.Context(), s, request("b", 1))
				synctest.Wait()
				f.answer(t)
				check(t, "afterwards", last.wait(t), nil)
			}
			check(t, "drain", s.Drain(t.Context()), nil)
			left := born.often.Load()
			time.Sleep(time.Hour)
			check(t, "tries after the end", left-born.often.Load(), 0)
		})
	}
}

// A driver that stops may fail to begin anew, too: it stops all the same.
func TestNewCoreFailsWhileStopping(t *testing.T) {
	for _, often := range []int64{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			f, obs := &fake{}, &counts{}
			born := &delivery{where: "flush"}
			s := newStillborn(t, born, deps(newMemory(1<<20), obs, f))
			has := start(t.Context(), s, request("a", 1))
			synctest.Wait()
			waits := start(t.Context(), s, request("b", 1))
			synctest.Wait()
			born.often.Store(often)
			drained := make(chan error, 1)
			go func() { drained <- s.Drain(t.Context()) }()
			synctest.Wait()
			check(t, "what waited", infer.CodeOf(waits.wait(t)), infer.Internal)
			check(t, "refused", infer.ReasonOf(start(t.Context(), s, request("c", 1)).wait(t)), infer.ReasonStopping)
			f.answer(t)
			check(t, "what an instance had", has.wait(t), nil)
			check(t, "drain", <-drained, nil)
			check(t, "queued", obs.queued.Load(), 0)
		})
	}
}

// refusing is memory whose Free panics once when told to.
type refusing struct {
	*memory
	free atomic.Bool
}

func (r *refusing) Free(b []byte) {
	if r.free.CompareAndSwap(true, false) {
		panic("broken: free")
	}
	r.memory.Free(b)
}

// Whoever is being refused while its memory can't be given back hears of it all the same.
func TestRefusalsSurviveFaults(t *testing.T) {
	policy := schedule.QueuePolicy{Set: true, Timeout: time.Millisecond}
	for name, rows := range map[string]int{"in a slot": 1, "in a block of its own": 8} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				mem := &refusing{memory: newMemory(8 << 20)}
				s := batcher(t, dynamic.Config{Policy: policy}, deps(mem, nil, f))
				has := start(t.Context(), s, request("a", 1))
				synctest.Wait()
				req := request("b", rows)
				if rows > 1 {
					req = large("b", rows)
				}
				late := start(t.Context(), s, req)
				synctest.Wait()
				mem.free.Store(true)
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if !late.finished() || late.err == nil {
					t.Fatalf("finished %v, %v", late.finished(), late.err)
				}
				check(t, "the fault was met", mem.free.Load(), false)
				f.answer(t)
				check(t, "the other", has.wait(t), nil)
				check(t, "drain", s.Drain(t.Context()), nil)
			})
		})
	}
}

// large is a request whose rows are too large for a slot.
func large(id string, rows int) *infer.Request {
	r := request(id, rows)
	r.Inputs[0].Shape[1] = 8 << 10
	r.Inputs[0].Data = make([]byte, 32<<10*rows)
	return r
}

// stuck is a log that nobody reads.
type stuck struct {
	slog.Handler
	read chan struct{}
	in   atomic.Int64
}

func (*stuck) Enabled(context.Context, slog.Level) bool { return true }

func (s *stuck) Handle(context.Context, slog.Record) error {
	s.in.Add(1)
	<-s.read
	panic("broken: log")
}

// A log that nobody reads, or that panics, costs a bounded number of goroutines and no request.
func TestStuckLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &stuck{read: make(chan struct{})}
		broken := true
		f := &fake{executed: func(b *infer.Batch) {
			if broken {
				panic("broken: execute")
			}
			b.Deliver(echo(b))
		}}
		d := deps(newMemory(1<<20), nil, f)
		d.Log = slog.New(log)
		s := batcher(t, dynamic.Config{}, d)
		for range 1000 {
			check(t, "a fault", infer.CodeOf(s.Do(t.Context(), request("a", 1), drop)), infer.Internal)
		}
		synctest.Wait()
		if n := log.in.Load(); n == 0 || n > 100 {
			t.Errorf("%d goroutines are stuck in the log", n)
		}
		broken = false
		check(t, "afterwards", s.Do(t.Context(), request("b", 1), drop), nil)
		close(log.read)
		synctest.Wait()
		check(t, "drain", s.Drain(t.Context()), nil)
	})
}
