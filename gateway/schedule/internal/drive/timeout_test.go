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
// clock that the gateway uses. A busy machine is late itself, so the median counts, beside
// what plain timers are late at the same time, and the best of a few tries.
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
	for deadline := time.Now().Add(time.Minute); f.ids() == "[]"; {
		if time.Now().After(deadline) {
			t.Fatal("the first request didn't leave")
		}
	}
	for try := 1; ; try++ {
		late, plain := expire(t, s)
		t.Logf("late by %v in the median, %v at most; plain timers by %v and %v", late[50], late[99], plain[50], plain[99])
		if late[50] <= 5*time.Millisecond+plain[50] {
			break
		}
		if try == 10 {
			t.Errorf("the median request was refused %v after its time, plain timers were late by %v", late[50], plain[50])
			break
		}
	}
	f.answer(t)
	check(t, "first", first.wait(t), nil)
}

// expire lets a hundred requests expire and as many timers beside them. It gives what each
// was late, in ascending order.
func expire(t *testing.T, s schedule.Scheduler) (late, plain []time.Duration) {
	t.Helper()
	late, plain = make([]time.Duration, 100), make([]time.Duration, 100)
	var wg sync.WaitGroup
	for i := range late {
		timeout := time.Duration(20+i) * time.Millisecond
		wg.Go(func() {
			begin := time.Now()
			<-time.After(timeout)
			plain[i] = time.Since(begin) - timeout
		})
		wg.Go(func() {
			req := request(fmt.Sprint(i), 1)
			req.Timeout = timeout
			begin := time.Now()
			err := s.Do(t.Context(), req, drop)
			late[i] = time.Since(begin) - timeout
			if infer.ReasonOf(err) != infer.ReasonQueueTimeout || late[i] < 0 {
				t.Errorf("request %d: %v, %v after its time", i, err, late[i])
			}
		})
	}
	wg.Wait()
	slices.Sort(late)
	slices.Sort(plain)
	return late, plain
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

// A request whose timeout has passed before it is queued is refused though an instance is free,
// where the policy rejects.
func TestTimeoutBeforeTheQueue(t *testing.T) {
	for name, row := range map[string]struct {
		policy schedule.QueuePolicy
		want   infer.Reason
	}{
		"reject":          {schedule.QueuePolicy{Set: true, Timeout: time.Hour, TimeoutOverride: true}, infer.ReasonQueueTimeout},
		"may not shorten": {schedule.QueuePolicy{Set: true, Timeout: time.Hour}, ""},
		"delay":           {schedule.QueuePolicy{Set: true, TimeoutOverride: true, TimeoutAction: schedule.Delay}, ""},
		"no policy":       {schedule.QueuePolicy{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			s := batcher(t, dynamic.Config{Policy: row.policy}, deps(newMemory(1<<20), nil, f))
			req := request("a", 1)
			req.Timeout = 5 * time.Microsecond
			req.Times.RequestStart = infer.Now() - int64(time.Millisecond)
			c := start(t.Context(), s, req)
			for deadline := time.Now().Add(time.Minute); f.ids() == "[]" && !c.finished(); {
				if time.Now().After(deadline) {
					t.Fatal("the request was neither executed nor refused")
				}
			}
			if row.want == "" {
				f.answer(t)
			}
			check(t, "reason", infer.ReasonOf(c.wait(t)), row.want)
		})
	}
}
