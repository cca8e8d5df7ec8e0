package repository

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

func TestStatistics(t *testing.T) {
	r, err := load(t, &fakeWorkers{}, Config{}, map[string]string{"b/config.pbtxt": identity + "version_policy { all {} }", "b/2/": "", "b/10/": "",
		"a/config.pbtxt": identity, "a/1/": "", "bad/config.pbtxt": "x"})
	if err == nil {
		t.Fatal("the bad model was loaded")
	}
	for _, row := range []struct{ name, version, want string }{
		{"", "", "a/1 b/2 b/10 "}, {"b", "", "b/2 b/10 "}, {"b", "10", "b/10 "},
		{"nope", "", "requested model 'nope' is not available"},
		{"bad", "", "requested model 'bad' is not available"},
		{"b", "3", "requested model version is not available for model 'b'"},
	} {
		resp, err := r.Statistics(row.name, row.version)
		got := ""
		if err != nil {
			got = err.Error()
		}
		for _, s := range resp.GetModelStats() {
			got += fmt.Sprintf("%s/%s ", s.Name, s.Version)
		}
		if got != row.want {
			t.Errorf("%q %q: got %s, want %s", row.name, row.version, got, row.want)
		}
		if err != nil && infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%q %q: code %v", row.name, row.version, infer.CodeOf(err))
		}
	}
}

func TestLoadThreads(t *testing.T) {
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("m%d/config.pbtxt", i)] = identity
		files[fmt.Sprintf("m%d/1/", i)] = ""
	}
	w := &fakeWorkers{}
	if _, err := load(t, w, Config{LoadThreads: 3}, files); err != nil {
		t.Fatal(err)
	}
	if n := w.most.Load(); n > 3 {
		t.Errorf("%d loads at the same time, want at most 3", n)
	}
}

func TestLoadStopped(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	ctx, cancel := context.WithCancel(t.Context())
	w := &fakeWorkers{fail: func(LoadSpec, int) error { cancel(); return ctx.Err() }}
	r := New(Config{Paths: []string{dir}, LoadRetries: 1000}, deps(w))
	if err := r.LoadAll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a cancelled load", err)
	}
	if w.tries["m/1"] != 1 {
		t.Errorf("%d tries after the stop", w.tries["m/1"])
	}
}

// A version that was loaded, but whose scheduler can't be made, is not left behind.
func TestSchedulerFails(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	d := deps(w)
	d.NewScheduler = func(*Model, []infer.Executor) (schedule.Scheduler, error) {
		return nil, infer.Errorf(infer.Unsupported, "no such scheduler")
	}
	r := New(Config{Paths: []string{dir}}, d)
	if err := r.LoadAll(t.Context()); err == nil || infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("got %v", err)
	}
	if w.loaded["m/1"].unloaded.Load() != 1 {
		t.Error("the version is still loaded")
	}
}

// Closing does not wait for ever for a request whose client does not read.
func TestCloseDeadline(t *testing.T) {
	w := &fakeWorkers{}
	r, err := load(t, w, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Acquire(t.Context(), "m", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if w.loaded["m/1"].unloaded.Load() != 1 || !m.scheduler.(*fakeScheduler).drained {
		t.Error("not freed, or not drained")
	}
	_, same := r.Acquire(t.Context(), "m", "")
	if _, err := r.Look("m", ""); err == nil || same == nil || err.Error() != same.Error() {
		t.Errorf("looked up: %v, acquired: %v", err, same)
	}
	if _, err := r.Acquire(t.Context(), "m", ""); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("after Close: %v", err)
	}
	m.Release()
}

// A load that ends after Close frees what it built.
func TestLoadAfterClose(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	r := New(Config{Paths: []string{dir}}, deps(w))
	var closing sync.WaitGroup
	w.fail = func(LoadSpec, int) error {
		closed := make(chan struct{})
		closing.Go(func() {
			close(closed)
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		<-closed
		for !r.isClosed() {
			runtime.Gosched()
		}
		return nil
	}
	if err := r.LoadAll(t.Context()); err == nil || !strings.Contains(err.Error(), "the server is shutting down") {
		t.Errorf("got %v", err)
	}
	closing.Wait()
	if w.loaded["m/1"].unloaded.Load() != 1 {
		t.Error("the version is still loaded")
	}
}

func (r *Repository) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}
