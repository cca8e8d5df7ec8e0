package client

import (
	"fmt"
	"testing"
	"time"
)

// A life is how long a process took to start with its models, and how long it served then.
type life struct{ start, served time.Duration }

func repeated(n int, l life) []life {
	all := make([]life, n)
	for i := range all {
		all[i] = l
	}
	return all
}

// A process that serves between its ends is started again at once. One that does little but start waits
// longer and longer, and begins anew after it has served well.
func TestBackoff(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		lives []life
		want  string
	}{
		{"twelve kills 2.5 s apart", repeated(12, life{200 * ms, 2300 * ms}), "[0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s]"},
		{"it never serves", repeated(10, life{50 * ms, 0}), "[0s 100ms 200ms 400ms 800ms 1.6s 3.2s 6.4s 10s 10s]"},
		{"it ends soon", repeated(4, life{50 * ms, 999 * ms}), "[0s 100ms 200ms 400ms]"},
		{"it takes longer to start than it serves", repeated(4, life{5 * time.Second, 2 * time.Second}), "[0s 100ms 200ms 400ms]"},
		{"it serves well after a while", append(repeated(8, life{50 * ms, 0}), life{50 * ms, 5 * time.Second}, life{50 * ms, 7 * time.Second},
			life{50 * ms, 0}), "[0s 100ms 200ms 400ms 800ms 1.6s 3.2s 6.4s 10s 10s 10s]"},
		{"it serves for longer than it waited", append(repeated(5, life{50 * ms, 0}), life{50 * ms, 2 * time.Second}, life{50 * ms, 0}),
			"[0s 100ms 200ms 400ms 800ms 0s 100ms]"},
	} {
		b := backoff{base: 100 * ms, most: 10 * time.Second}
		var got []time.Duration
		for _, l := range c.lives {
			b.served(l.start, l.served, time.Second)
			got = append(got, b.next())
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}
