package repository

import (
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// A version that no worker serves, and an ensemble that needs it, are not ready and the index says why. A load call
// of what is on disk as before leaves it alone: it serves again with its worker.
func TestUnservedVersion(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": "", "over/config.pbtxt": passing("m", "-1"), "over/1/": ""})
	d := deps(&fakeWorkers{})
	made := map[string]*faulty{}
	d.NewScheduler = func(m *Model, _ []infer.Executor) (schedule.Scheduler, error) {
		if made[m.Name] != nil {
			t.Errorf("'%s' is built again", m.Name)
		}
		made[m.Name] = &faulty{fakeScheduler: fakeScheduler{up: map[int]bool{}}}
		return made[m.Name], nil
	}
	r := New(Config{Paths: []string{dir}, Mode: Explicit, Startup: []string{"over"}, StrictReadiness: true, TempDir: t.TempDir()}, d)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(when, want string, ready bool) {
		t.Helper()
		for _, name := range []string{"m", "over"} {
			if is, err := r.ModelReady(name, ""); is != ready || err != nil {
				t.Errorf("%s: '%s' is ready: %v, %v", when, name, is, err)
			}
		}
		if index(r) != want || r.Ready() != ready || r.Degraded() != ready {
			t.Errorf("%s: %s, server ready %v, degraded %v", when, index(r), r.Ready(), r.Degraded())
		}
	}
	const up, down = "m 1 READY\nover 1 READY\n", "m 1 UNAVAILABLE: Unavailable: gone\nover 1 UNAVAILABLE: Unavailable: gone\n"
	check("at first", up, true)
	made["m"].set(infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "gone"))
	check("no worker", down, false)
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Error(err)
	}
	check("loaded once more", down, false)
	made["m"].set(nil)
	check("it is back", up, true)
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
