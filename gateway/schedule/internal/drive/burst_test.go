package drive_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
)

// What was read together is executed together, though an instance was free; a result that
// comes meanwhile takes what is there, and nothing is left behind.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &fake{}
		s, err := dynamic.New(dynamic.Config{Model: model(8)}, deps(newMemory(1<<20), &counts{}, inst))
		if err != nil {
			t.Fatal(err)
		}
		var burst loop.Burst
		var sinks []*sink
		start := func(ids string) {
			for _, id := range ids {
				req := request(string(id), 1)
				req.Burst = &burst
				to := newSink(t, drop)
				sinks = append(sinks, to)
				s.Start(&lifetime.Context{}, req, to)
			}
		}
		burst.Open()
		start("abc")
		if got := inst.ids(); got != "[]" || s.Pending() != 3 {
			t.Fatalf("executed %s in the middle of a burst, %d wait", got, s.Pending())
		}
		burst.Close()
		if got := inst.ids(); got != "[abc]" {
			t.Fatalf("executed %s", got)
		}
		burst.Open()
		start("de")
		inst.answer(t)
		if got := inst.ids(); got != "[abc de]" {
			t.Fatalf("executed %s when the instance was free", got)
		}
		start("f")
		burst.Close()
		inst.answer(t)
		start("g") // no burst
		inst.answer(t)
		inst.answer(t)
		if got := inst.ids(); got != "[abc de f g]" {
			t.Fatalf("executed %s", got)
		}
		for i, to := range sinks {
			select {
			case err := <-to.done:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error(fmt.Sprint("request ", i, " has no answer"))
			}
		}
	})
}
