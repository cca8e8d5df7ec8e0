package repository

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// faulty is a scheduler that may be unable to serve.
type faulty struct {
	fakeScheduler
	fault   atomic.Pointer[error]
	changed func()
}

func (s *faulty) Fault() error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *faulty) set(err error) {
	s.fault.Store(&err)
	if err == nil {
		s.fault.Store(nil)
	}
	if s.changed != nil {
		s.changed()
	}
}

// A version whose scheduler can't serve is not ready, nor is what needs it; the index says
// why, and a reload of what is on disk as before brings it back.
func TestFaultyScheduler(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": "", "n/config.pbtxt": strings.Replace(identity, `"m"`, `"n"`, 1), "n/1/": ""})
	d := deps(w)
	var made []*faulty
	d.NewScheduler = func(_ *Model, instances []infer.Executor) (schedule.Scheduler, error) {
		s := &faulty{fakeScheduler: fakeScheduler{up: map[int]bool{}}, changed: d.Changed}
		made = append(made, s)
		return s, nil
	}
	var news atomic.Int64
	d.Changed = func() { news.Add(1) }
	r := New(Config{Paths: []string{dir}, Mode: Explicit, Startup: []string{"m"}, StrictReadiness: true, TempDir: t.TempDir()}, d)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(when, wantIndex string, want bool) {
		t.Helper()
		ready, err := r.ModelReady("m", "")
		if index(r) != wantIndex || ready != want || err != nil || r.Ready() != want || len(r.Index(true).Models) == 1 != want {
			t.Errorf("%s: %s, model ready %v, %v, server ready %v", when, index(r), ready, err, r.Ready())
		}
	}
	const up, down = "m 1 READY\nn - \n", "m 1 UNAVAILABLE: Internal: broken\nn - \n"
	check("at first", up, true)
	before := news.Load()
	made[0].set(infer.Errorf(infer.Internal, "broken"))
	check("broken", down, false)
	if news.Load() != before+1 {
		t.Errorf("%d times told", news.Load()-before)
	}
	made[0].set(nil)
	check("healed", up, true)
	made[0].set(infer.Errorf(infer.Internal, "broken"))
	w.fail = func(LoadSpec, int) error { return errors.New("no") }
	if err := r.Load(t.Context(), "m", &Override{}); err == nil {
		t.Error("the reload had no effect")
	}
	check("reloaded in vain", down, false)
	w.fail = nil
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Error(err)
	}
	check("reloaded", up, true)
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if len(made) != 2 || !made[0].drained {
		t.Errorf("%d schedulers; the first drained: %v", len(made), made[0].drained)
	}
}
