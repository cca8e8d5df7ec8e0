package drive_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

const workerWait = 30 * time.Second

func waiting(d schedule.Deps) schedule.Deps {
	d.WorkerWait = workerWait
	return d
}

func checkUnserved(t *testing.T, c *caller) {
	t.Helper()
	err := c.wait(t)
	check(t, c.req.ID+" code", infer.CodeOf(err), infer.Unavailable)
	check(t, c.req.ID+" reason", infer.ReasonOf(err), infer.ReasonNotReady)
	if err != nil && !strings.Contains(err.Error(), "no worker has served model 'm' version 3 for 30s") {
		t.Errorf("%s: %v", c.req.ID, err)
	}
}

// No request waits for ever for a worker that is gone: after WorkerWait all that wait are refused,
// and those that come at once, until an instance is in service again.
func TestUnserved(t *testing.T) {
	for name, preserve := range map[string]bool{"any order": false, "preserved order": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testUnserved(t, dynamic.Config{PreserveOrdering: preserve}) })
		})
	}
}

func testUnserved(t *testing.T, cfg dynamic.Config) {
	f, g, mem, seen := &fake{}, &fake{}, newMemory(1<<20), &counts{}
	var changes atomic.Int32
	given := waiting(deps(mem, seen, f, g))
	given.Changed = func() { changes.Add(1) }
	s := batcher(t, cfg, given)
	a := start(t.Context(), s, request("a", 1))
	synctest.Wait()
	begun := time.Now()
	s.InstanceDown(1)
	f.lose(t) // a is to be tried again
	time.Sleep(20 * time.Second)
	b := start(t.Context(), s, request("b", 1))
	time.Sleep(workerWait - 20*time.Second - 1)
	synctest.Wait()
	check(t, "one of them has ended before the time is over", a.finished() || b.finished(), false)
	check(t, "fault", s.Fault(), nil)
	time.Sleep(1)
	synctest.Wait()
	for _, c := range []*caller{a, b} {
		checkUnserved(t, c)
		check(t, c.req.ID+" waited", c.at.Sub(begun), workerWait)
	}
	check(t, "waiting", s.Pending(), 0)
	if infer.CodeOf(s.Fault()) != infer.Unavailable || s.Fault() == nil {
		t.Errorf("fault: %v", s.Fault())
	}
	check(t, "changes", changes.Load(), 1)
	time.Sleep(time.Hour)
	at := time.Now()
	late := start(t.Context(), s, request("c", 1))
	checkUnserved(t, late)
	check(t, "c waited", late.at.Sub(at), 0)

	s.InstanceUp(1)
	check(t, "fault", s.Fault(), nil)
	check(t, "changes", changes.Load(), 2)
	d := start(t.Context(), s, request("d", 1))
	synctest.Wait()
	g.answer(t)
	check(t, "d", d.wait(t), nil)
	check(t, "queued", seen.queued.Load(), 0)
	s.InstanceDown(1) // and once more, from the start
	e := start(t.Context(), s, request("e", 1))
	time.Sleep(workerWait - 1)
	synctest.Wait()
	check(t, "e ended early", e.finished(), false)
	time.Sleep(1)
	checkUnserved(t, e)
	check(t, "memory in use", mem.inUse(), 0)
}

// A worker that is back in time loses nobody; the queue policies' own timers keep their times.
func TestBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, waiting(deps(newMemory(1<<20), nil, f)))
		s.InstanceDown(0)
		a := start(t.Context(), s, request("a", 1))
		short := request("b", 1)
		short.Timeout = 10 * time.Second
		b := start(t.Context(), s, short)
		begun := time.Now()
		time.Sleep(workerWait - 1)
		check(t, "b", infer.ReasonOf(b.wait(t)), infer.ReasonQueueTimeout)
		check(t, "b waited", b.at.Sub(begun), 10*time.Second)
		s.InstanceUp(0)
		synctest.Wait()
		time.Sleep(time.Hour) // the timer of the absence finds nothing
		f.answer(t)
		check(t, "a", a.wait(t), nil)
		check(t, "fault", s.Fault(), nil)
	})
}

// Without a bound requests wait for as long as their callers do.
func TestUnservedUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		s.InstanceDown(0)
		a := start(t.Context(), s, request("a", 1))
		time.Sleep(24 * time.Hour)
		s.InstanceUp(0)
		synctest.Wait()
		f.answer(t)
		check(t, "a", a.wait(t), nil)
	})
}
