package schedule

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

func TestQueuePolicyWait(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name    string
		policy  QueuePolicy
		request time.Duration
		want    time.Duration
	}{
		{"nothing", QueuePolicy{}, 0, 0},
		{"no policy, the request's counts", QueuePolicy{}, s, s},
		{"default", QueuePolicy{Set: true, Timeout: s}, 0, s},
		{"override not allowed", QueuePolicy{Set: true, Timeout: 2 * s}, s, 2 * s},
		{"override not allowed, no default", QueuePolicy{Set: true}, s, 0},
		{"override shortens", QueuePolicy{Set: true, Timeout: 2 * s, TimeoutOverride: true}, s, s},
		{"override never lengthens", QueuePolicy{Set: true, Timeout: s, TimeoutOverride: true}, 2 * s, s},
		{"override without a default", QueuePolicy{Set: true, TimeoutOverride: true}, s, s},
		{"beyond the clock", QueuePolicy{}, math.MaxInt64, maxWait},
	} {
		if got := c.policy.Wait(&infer.Request{Timeout: c.request}); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
