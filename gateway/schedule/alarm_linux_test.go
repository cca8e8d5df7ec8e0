package schedule

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newAlarm(t testing.TB) *Alarm {
	t.Helper()
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestAlarmOrder(t *testing.T) {
	a := newAlarm(t)
	var mu sync.Mutex
	var got []int
	done := make(chan struct{})
	note := func(i int) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			if got = append(got, i); i == 3 {
				close(done)
			}
		}
	}
	now := a.Now()
	var timers []Timer
	for i := range 4 {
		timers = append(timers, a.NewTimer(note(i)))
	}
	timers[3].Set(now + int64(30*time.Millisecond))
	timers[1].Set(now + int64(20*time.Millisecond))
	timers[2].Set(now + int64(time.Millisecond))
	timers[0].Set(now + int64(25*time.Millisecond))
	timers[0].Set(now + int64(5*time.Millisecond)) // moved to the front of 1
	timers[2].Stop()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("timers did not fire")
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []int{0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAlarmClosed(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	timer := a.NewTimer(func() { t.Error("fired after Close") })
	timer.Set(a.Now() + int64(time.Hour))
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	timer.Set(a.Now())
	timer.Stop()
}

// TestAlarmNeverEarly also logs how late it is: tens of microseconds on an idle machine.
func TestAlarmNeverEarly(t *testing.T) {
	a := newAlarm(t)
	fired := make(chan int64)
	timer := a.NewTimer(func() { fired <- infer.Now() })
	var late []time.Duration
	for range 100 {
		at := a.Now() + int64(200*time.Microsecond)
		timer.Set(at)
		d := time.Duration(<-fired - at)
		if d < 0 {
			t.Fatalf("fired %v early", -d)
		}
		late = append(late, d)
	}
	slices.Sort(late)
	t.Logf("late: p50 %v, p90 %v, max %v", late[50], late[90], late[99])
}
