package admission

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// From many goroutines at once, with the rules changing under them: never more calls than
// a limit has room for, and all room is there again in the end.
func TestAtOnce(t *testing.T) {
	const file = "track: 256\nrules:\n- {name: all, concurrency: 4}\n- {name: each, each: principal+model, concurrency: 2, bytes_in_flight: 200}\n"
	l := limits(t, file, nil)
	var running, most, taken atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1500 {
				env := &infer.Envelope{Action: infer.ActionInference, Principal: &infer.Principal{Name: fmt.Sprint("p", (g+i)%300)}, BodySize: -1}
				req := &infer.Request{Model: fmt.Sprint("m", i%2), Envelope: env, Inputs: []infer.Tensor{{Shape: []int64{1}, Data: make([]byte, 60)}}}
				err := l.Open(t.Context(), env)
				if err == nil {
					n := running.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					if l.Request(t.Context(), req) == nil {
						taken.Add(1)
					}
					running.Add(-1)
				}
				l.Close(env, &infer.End{Request: req})
				if g == 0 && i%100 == 0 {
					rules, err := Parse([]byte(file))
					if err != nil {
						t.Error(err)
					}
					l.use(rules)
					l.sweep()
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 4 || taken.Load() == 0 {
		t.Errorf("%d calls at once, want at most 4; %d went on", most.Load(), taken.Load())
	}
	l.sweep()
	l.sweep()
	if n := l.table.size(); n != 0 {
		t.Errorf("%d meters are left", n)
	}
}
