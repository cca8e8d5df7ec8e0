package tick

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Tickers that began at different moments fire at the same ones, and each at its interval.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now().Truncate(time.Hour)
		var fired [3][]time.Duration
		done := make(chan struct{})
		for i, every := range []time.Duration{time.Second, time.Second, 2 * time.Second} {
			time.Sleep(333 * time.Millisecond)
			go func() {
				k := New(every)
				defer k.Stop()
				for range 3 {
					fired[i] = append(fired[i], (<-k.C).Sub(begin))
					k.Next()
				}
				done <- struct{}{}
			}()
		}
		for range fired {
			<-done
		}
		const s = time.Second
		for i, want := range [][]time.Duration{{s, 2 * s, 3 * s}, {2 * s, 3 * s, 4 * s}, {2 * s, 4 * s, 6 * s}} {
			if !slices.Equal(fired[i], want) {
				t.Errorf("ticker %d fired after %v, want %v", i, fired[i], want)
			}
		}
	})
}

func TestUntil(t *testing.T) {
	for _, c := range []struct{ now, every, want time.Duration }{
		{0, time.Second, time.Second},
		{300 * time.Millisecond, time.Second, 700 * time.Millisecond},
		{700 * time.Millisecond, time.Second, 1300 * time.Millisecond},
		{999 * time.Millisecond, time.Second, 1001 * time.Millisecond},
		{time.Second + 1, time.Second, time.Second - 1},
		{7 * time.Second, 10 * time.Second, 13 * time.Second},
		{0, 1, 1},
	} {
		if got := until(time.Unix(0, int64(c.now)), c.every); got != c.want {
			t.Errorf("%v after a multiple of %v: %v, want %v", c.now, c.every, got, c.want)
		}
	}
}
