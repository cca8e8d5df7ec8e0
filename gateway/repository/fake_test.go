package repository

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// fakeWorkers load everything but what fail says, and describe what desc says.
type fakeWorkers struct {
	gpus []int32
	desc map[string]*worker.DescribeResponse // model → tensors
	fail func(spec LoadSpec, try int) error

	mu       sync.Mutex
	loads    []LoadSpec
	tries    map[string]int
	loaded   map[string]*fakeLoaded
	loading  atomic.Int32
	most     atomic.Int32
	describe atomic.Int32
}

func (w *fakeWorkers) Backends() map[string]*worker.Backend {
	return map[string]*worker.Backend{"identity": {Name: "identity"}, "onnxruntime": {Name: "onnxruntime", Gpu: true,
		Placements: []*worker.Placement{{Kind: worker.Placement_GPU}, {Kind: worker.Placement_CPU, Count: 2}},
		Formats:    []*worker.ModelFormat{{Platform: "onnxruntime_onnx", Filename: "model.onnx"}}}}
}

func (w *fakeWorkers) Devices() []Device {
	all := []Device{{Name: "cpu"}}
	for _, id := range w.gpus {
		all = append(all, Device{GPU: true, ID: id})
	}
	return all
}

func (w *fakeWorkers) Describe(_ context.Context, spec *LoadSpec) (*worker.DescribeResponse, error) {
	w.describe.Add(1)
	if d := w.desc[spec.Name]; d != nil {
		return d, nil
	}
	return nil, infer.Errorf(infer.Unsupported, "nothing is declared")
}

func (w *fakeWorkers) Load(_ context.Context, spec LoadSpec) (Loaded, error) {
	n := w.loading.Add(1)
	defer w.loading.Add(-1)
	for m := w.most.Load(); n > m && !w.most.CompareAndSwap(m, n); m = w.most.Load() {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprintf("%s/%d", spec.Name, spec.Version)
	if w.tries == nil {
		w.tries, w.loaded = map[string]int{}, map[string]*fakeLoaded{}
	}
	w.tries[key]++
	if w.fail != nil {
		if err := w.fail(spec, w.tries[key]); err != nil {
			return nil, err
		}
	}
	w.loads = append(w.loads, spec)
	w.loaded[key] = &fakeLoaded{spec: spec}
	return w.loaded[key], nil
}

type fakeLoaded struct {
	spec     LoadSpec
	unloaded atomic.Int32
	ready    func() error // of a model that is asked; nil: it is not
}

func (*fakeLoaded) Executor(int) infer.Executor    { return nil }
func (l *fakeLoaded) Unload(context.Context) error { l.unloaded.Add(1); return nil }
func (*fakeLoaded) Device() string                 { return "" }

func (*fakeLoaded) Memory() []*worker.MemoryUsage {
	return []*worker.MemoryUsage{{Type: "CPU", ByteSize: 7}}
}

func (*fakeLoaded) Reaches(uint32) bool { return true }

func (l *fakeLoaded) AsksReady() bool             { return l.ready != nil }
func (l *fakeLoaded) Ready(context.Context) error { return l.ready() }

// fakeScheduler answers at once.
type fakeScheduler struct {
	mu      sync.Mutex
	up      map[int]bool
	drained bool
}

func (s *fakeScheduler) Do(context.Context, *infer.Request, infer.SendFunc) error { return nil }
func (s *fakeScheduler) Start(context.Context, *infer.Request, infer.Sink) bool   { return false }
func (s *fakeScheduler) Turn(context.Context, *infer.Request) error               { return nil }
func (s *fakeScheduler) Fault() error                                             { return nil }
func (s *fakeScheduler) Busy() int                                                { return 0 }
func (s *fakeScheduler) set(i int, up bool)                                       { s.mu.Lock(); defer s.mu.Unlock(); s.up[i] = up }
func (s *fakeScheduler) InstanceDown(i int)                                       { s.set(i, false) }
func (s *fakeScheduler) InstanceUp(i int)                                         { s.set(i, true) }
func (s *fakeScheduler) Ready() int                                               { return len(s.up) }
func (s *fakeScheduler) Pending() int                                             { return 0 }
func (s *fakeScheduler) Drain(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
	return nil
}

type fakeStats struct{ m *Model }

func (fakeStats) Done(*infer.Request, error)            {}
func (fakeStats) Executed(int, int, infer.ComputeTimes) {}
func (fakeStats) Queued(int)                            {}
func (s fakeStats) Snapshot() *inference.ModelStatistics {
	return &inference.ModelStatistics{Name: s.m.Name, Version: s.m.versionText}
}
func (fakeStats) Close()                        {}
func (fakeStats) SetLoadDuration(time.Duration) {}

func deps(w Workers) Deps {
	return Deps{
		Workers:  w,
		NewStats: func(m *Model) Stats { return fakeStats{m} },
		NewScheduler: func(_ *Model, instances []infer.Executor) (schedule.Scheduler, error) {
			s := &fakeScheduler{up: map[int]bool{}}
			for i := range instances {
				s.up[i] = true
			}
			return s, nil
		},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// write lays files down: path → content; a path that ends in / is a folder.
func write(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for path, content := range files {
		full := filepath.Join(dir, path)
		folder := filepath.Dir(full)
		if path[len(path)-1] == '/' {
			folder = full
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if folder != full {
			if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func load(t testing.TB, w *fakeWorkers, cfg Config, files map[string]string) (*Repository, error) {
	t.Helper()
	cfg.Paths = append(cfg.Paths, write(t, t.TempDir(), files))
	cfg.StrictReadiness = true
	r := New(cfg, deps(w))
	err := r.LoadAll(t.Context())
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r, err
}

func info(name string, dt configpb.DataType, shape ...int64) *worker.TensorInfo {
	return &worker.TensorInfo{Name: name, DataType: dt, Shape: shape}
}

// index is the index as text: name, version, state and reason.
func index(r *Repository) string {
	text := ""
	for _, row := range r.Table() {
		text += fmt.Sprintf("%s %s %s\n", row.Name, row.Version, row.State)
	}
	return text
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
