package repository

import (
	"testing"
	"testing/synctest"
	"time"
)

// A model without an instance is not ready. For restartTime its requests are worth sending,
// since they wait for the worker that comes back; an ensemble's as well.
func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWorkers{}
		r, err := load(t, w, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/": "",
			"over/config.pbtxt": passing("m", "-1"), "over/1/": ""})
		if err != nil {
			t.Fatal(err)
		}
		spec := w.loads[0]
		check := func(when string, ready, degraded bool) {
			t.Helper()
			synctest.Wait()
			if r.Ready() != ready || r.Degraded() != degraded {
				t.Errorf("%s: ready %v, degraded %v, want %v, %v", when, r.Ready(), r.Degraded(), ready, degraded)
			}
		}
		check("loaded", true, true)
		spec.Changed(0, false)
		check("one of two instances lost", true, true)
		spec.Changed(1, false)
		check("both lost", false, true)
		time.Sleep(restartTime - 1)
		check("just before the time is over", false, true)
		time.Sleep(1)
		check("they don't come back", false, false)
		spec.Changed(0, true)
		check("one is back", true, true)
		spec.Changed(0, false)
		check("and lost again", false, true)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
