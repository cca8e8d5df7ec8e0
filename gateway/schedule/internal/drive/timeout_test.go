package drive_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// TestTimeoutsAreExact lets a hundred requests expire behind a busy instance, by the
// clock that the gateway uses. A busy machine may be late now and then, so the median
// counts.
func TestTimeoutsAreExact(t *testing.T) {
	alarm, err := schedule.NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer alarm.Close()
	f := &fake{}
	d := deps(newMemory(1<<20), nil, f)
	d.Clock = alarm
	s := batcher(t, dynamic.Config{}, d)
	first := start(t.Context(), s, request("z", 1))
	for deadline := time.Now().Add(10 * time.Second); f.ids() == "[]"; {
		if time.Now().After(deadline) {
			t.Fatal("the first request didn't leave")
		}
	}
	var mu sync.Mutex
	var late []time.Duration
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			req := request(fmt.Sprint(i), 1)
			req.Timeout = time.Duration(20+i) * time.Millisecond
			begin := time.Now()
			err := s.Do(t.Context(), req, drop)
			took := time.Since(begin) - req.Timeout
			if infer.ReasonOf(err) != infer.ReasonQueueTimeout || took < 0 {
				t.Errorf("request %d: %v, %v after its time", i, err, took)
			}
			mu.Lock()
			defer mu.Unlock()
			late = append(late, took)
		})
	}
	wg.Wait()
	f.answer(t)
	check(t, "first", first.wait(t), nil)
	slices.Sort(late)
	t.Logf("late by %v in the median, %v at most", late[50], late[99])
	if late[50] > 5*time.Millisecond {
		t.Errorf("the median request was refused %v after its time", late[50])
	}
}

// TestLevels has each level's policy decide over its requests.
func TestLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{
			Policy: schedule.QueuePolicy{Set: true, Timeout: 50 * time.Millisecond},
			Levels: schedule.Levels{Count: 3, Default: 2, Own: map[uint64]*schedule.QueuePolicy{
				1: {Set: true, MaxSize: 1},
				3: {Set: true, Timeout: 20 * time.Millisecond, TimeoutAction: schedule.Delay, TimeoutOverride: true},
			}}}, deps(newMemory(1<<20), nil, f))
		var callers []*caller
		ask := func(id string, priority uint64, timeout time.Duration) *caller {
			r := request(id, 4) // two fill a batch
			r.Priority, r.Timeout = priority, timeout
			c := start(t.Context(), s, r)
			callers = append(callers, c)
			synctest.Wait()
			return c
		}
		ask("z", 0, 0)
		ask("a", 3, 0)
		ask("b", 3, 10*time.Millisecond) // delayed before a
		c := ask("c", 0, 10*time.Millisecond)
		ask("d", 1, 0)
		e := ask("e", 1, 0)
		check(t, "e", infer.ReasonOf(e.wait(t)), infer.ReasonQueueFull)
		time.Sleep(49 * time.Millisecond)
		ask("f", 3, 0)
		check(t, "c may not shorten its time", c.finished(), false)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		check(t, "c", infer.ReasonOf(c.wait(t)), infer.ReasonQueueTimeout)
		for range 3 {
			f.answer(t)
			synctest.Wait()
		}
		check(t, "batches", f.ids(), "[z df ba]")
		for _, one := range callers {
			if one != c && one != e {
				check(t, one.req.ID, one.wait(t), nil)
			}
		}
	})
}
