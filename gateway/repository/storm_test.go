package repository

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// countingWorkers know how much of what they loaded was not freed, or freed twice.
type countingWorkers struct {
	fakeWorkers
	mu  sync.Mutex
	all []*fakeLoaded
}

func (w *countingWorkers) Load(ctx context.Context, spec LoadSpec) (Loaded, error) {
	if err := ctx.Err(); err != nil {
		return nil, infer.Errorf(infer.Cancelled, "loading: %w", err)
	}
	if w.loading.Add(1)%5 == 0 {
		return nil, infer.Errorf(infer.Internal, "out of memory")
	}
	l := &fakeLoaded{spec: spec}
	w.mu.Lock()
	w.all = append(w.all, l)
	w.mu.Unlock()
	return l, nil
}

// Whatever is loaded, unloaded, overridden and changed at the same time, and whenever the
// repository is closed, every version is freed once, no folder is left, and nobody waits
// for ever.
func TestStorm(t *testing.T) {
	for seed := range uint64(8) {
		storm(t, seed, Explicit)
		storm(t, seed, Poll)
	}
}

func storm(t *testing.T, seed uint64, mode Mode) {
	dir := write(t, t.TempDir(), map[string]string{
		"a/config.pbtxt": identity, "a/1/w": "1", "a/2/w": "1", "b/config.pbtxt": identity, "b/1/w": "1",
		"e/config.pbtxt": passing("a", "-1"), "e/1/": "", "f/config.pbtxt": over("e"), "f/1/": ""})
	w := &countingWorkers{}
	r := New(Config{Paths: []string{dir}, Mode: mode, TempDir: t.TempDir(), LoadThreads: 2, Startup: []string{"a"}}, deps(w))
	_ = r.LoadAll(t.Context()) // some loads fail
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	var closing atomic.Bool
	var wg sync.WaitGroup
	for n := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, n))
		wg.Go(func() {
			for i := 0; i < 40 && !closing.Load(); i++ {
				stormStep(ctx, t, r, rnd, dir)
			}
		})
	}
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(seed, 99))
		for range rnd.IntN(120) {
			if m, err := r.Acquire(ctx, []string{"a", "b", "e", "f"}[rnd.IntN(4)], ""); err == nil {
				time.AfterFunc(time.Duration(rnd.IntN(1000))*time.Microsecond, m.Release)
			}
			<-time.After(100 * time.Microsecond)
		}
		closing.Store(rnd.IntN(2) == 0)
		if err := r.Close(ctx); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		closing.Store(true)
	})
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatalf("seed %d, %s: somebody waited for ever", seed, mode)
	}
	for _, l := range w.all {
		if n := l.unloaded.Load(); n != 1 {
			t.Errorf("seed %d, %s: %s version %d was freed %d times", seed, mode, l.spec.Name, l.spec.Version, n)
		}
	}
	if left, err := filepath.Glob(filepath.Join(r.scratch.root(), "gateway-*")); err != nil || len(left) > 0 {
		t.Errorf("seed %d, %s: %v is left: %v", seed, mode, left, err)
	}
	if len(r.turns.all) > 0 {
		t.Errorf("seed %d, %s: turns are still taken: %v", seed, mode, r.turns.all)
	}
}

// stormStep does one thing; what fails is not the test's concern but waiting for ever is.
func stormStep(ctx context.Context, t *testing.T, r *Repository, rnd *rand.Rand, dir string) {
	name := []string{"a", "b", "e", "f"}[rnd.IntN(4)]
	var err error
	switch rnd.IntN(8) {
	case 0, 1:
		err = r.Load(ctx, name, &Override{})
	case 2:
		err = r.Unload(ctx, name, rnd.IntN(2) == 0)
	case 3:
		err = r.Load(ctx, name, &Override{Config: passingJSON([]string{"a", "b", "e", "f"}[rnd.IntN(4)])})
	case 4:
		config := `{"backend":"identity","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,-1]}],
"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,-1]}]}`
		err = r.Load(ctx, name, &Override{Config: &config, Files: map[string][]byte{"1/w": []byte("x")}})
	case 5:
		file := filepath.Join(dir, name, "1", fmt.Sprint("w", rnd.IntN(3)))
		if os.WriteFile(file, fmt.Append(nil, rnd.IntN(1000)), 0o644) != nil {
			t.Errorf("writing %s", file)
		}
	default:
		err = polled(ctx, r, newSteady(0))
	}
	if infer.CodeOf(err) == infer.Cancelled && ctx.Err() != nil {
		t.Errorf("%s: %v", name, err)
	}
}
