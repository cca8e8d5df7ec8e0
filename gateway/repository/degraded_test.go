package repository

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A model without an instance is not ready. For WorkerWait its requests are worth sending,
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
		time.Sleep(DefaultWorkerWait - 1)
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

// While a version is loaded beside one that serves, the server stays ready. A model that is
// new, or can't be loaded, makes it degraded: requests for the other models are worth sending.
func TestReadinessWhileModelsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, goOn := make(chan struct{}), make(chan error)
		w := &fakeWorkers{}
		r, dir := explicit(t, w, Config{Startup: []string{"m"}}, map[string]string{"m/config.pbtxt": policy + "all {} }", "m/1/": ""})
		w.fail = func(LoadSpec, int) error { begun <- struct{}{}; return <-goOn }
		for _, c := range []struct {
			name, model     string
			files           map[string]string
			loading, loaded [2]bool // ready, degraded
			err             error
		}{
			{"another version", "m", map[string]string{"m/2/": ""}, [2]bool{true, true}, [2]bool{true, true}, nil},
			{"a new model", "n", map[string]string{"n/config.pbtxt": identity, "n/1/": ""}, [2]bool{false, true}, [2]bool{true, true}, nil},
			{"a new version that fails", "n", map[string]string{"n/config.pbtxt": identity + "version_policy { all {} }", "n/2/": ""},
				[2]bool{true, true}, [2]bool{false, true}, errors.New("broken")},
		} {
			write(t, dir, c.files)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := r.Load(t.Context(), c.model, &Override{}); (err != nil) != (c.err != nil) {
					t.Errorf("%s: %v", c.name, err)
				}
			}()
			<-begun
			if got := [2]bool{r.Ready(), r.Degraded()}; got != c.loading {
				t.Errorf("%s, loading: ready and degraded %v, want %v: %s", c.name, got, c.loading, index(r))
			}
			goOn <- c.err
			for over := false; !over; {
				select {
				case <-begun: // other versions of the same load
					goOn <- c.err
				case <-done:
					over = true
				}
			}
			if got := [2]bool{r.Ready(), r.Degraded()}; got != c.loaded {
				t.Errorf("%s: ready and degraded %v, want %v: %s", c.name, got, c.loaded, index(r))
			}
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
