package repository

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// hangingWorkers never end what they are told to do for models whose names begin with a phase's,
// until let is closed. They heed no context, as a library that opens a model file heeds none.
type hangingWorkers struct {
	fakeWorkers
	let chan struct{}

	mu  sync.Mutex
	at  map[string]bool // models that hang
	all []*fakeLoaded
}

func newHanging() *hangingWorkers {
	return &hangingWorkers{let: make(chan struct{}), at: map[string]bool{}}
}

func (w *hangingWorkers) hang(model, phase string) {
	if !strings.HasPrefix(model, phase) {
		return
	}
	w.mu.Lock()
	w.at[model] = true
	w.mu.Unlock()
	<-w.let
}

func (w *hangingWorkers) hangs(model string) func() bool {
	return func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.at[model] }
}

func (w *hangingWorkers) Describe(_ context.Context, spec *LoadSpec) (*worker.DescribeResponse, error) {
	w.hang(spec.Name, "describe")
	return nil, infer.Errorf(infer.Unsupported, "nothing is declared")
}

func (w *hangingWorkers) Load(_ context.Context, spec LoadSpec) (Loaded, error) {
	w.hang(spec.Name, "worker")
	l := &hangingLoaded{fakeLoaded{spec: spec}, w}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, &l.fakeLoaded)
	return l, nil
}

type hangingLoaded struct {
	fakeLoaded
	w *hangingWorkers
}

func (l *hangingLoaded) Executor(int) infer.Executor { return hangingExecutor{l} }

// Unload waits for the batch in flight, as a worker does.
func (l *hangingLoaded) Unload(ctx context.Context) error {
	if strings.HasPrefix(l.spec.Name, "warmup") {
		<-l.w.let
	}
	return l.fakeLoaded.Unload(ctx)
}

// hangingExecutor answers no batch of models that hang in their warm-up.
type hangingExecutor struct{ l *hangingLoaded }

func (e hangingExecutor) Execute(b *infer.Batch) {
	go func() {
		e.l.w.hang(e.l.spec.Name, "warmup")
		b.Deliver(&infer.Result{})
	}()
}

func (hangingExecutor) Cancel(*infer.Batch, int) {}
func (hangingExecutor) Occupied(uint64) bool     { return false }
func (hangingExecutor) Place() (string, string)  { return "", "" }

// Load fits Agents: the agent of models that hang there never answers.
func (w *hangingWorkers) agent() Agents { return hangingAgents{w} }

type hangingAgents struct{ w *hangingWorkers }

func (a hangingAgents) Load(ctx context.Context, m AgentModel) (AgentRun, error) {
	a.w.mu.Lock()
	a.w.at[m.Name] = true
	a.w.mu.Unlock()
	<-ctx.Done() // an agent is a process, which is ended
	return nil, ctx.Err()
}

const warmed1 = identity + ` model_warmup { name: "s" batch_size: 1 inputs { key: "in" value { data_type: TYPE_FP32 dims: [2, 3] zero_data: true } } }`

// hostile makes an explicit repository of models that hang in each phase.
func hostile(t *testing.T, cfg Config, files map[string]string) (*Repository, *hangingWorkers) {
	t.Helper()
	w := newHanging()
	for name, config := range map[string]string{"worker": identity, "warmup": warmed1,
		"describe": `backend: "identity" max_batch_size: 8`, "agent": identity + `model_repository_agents { agents { name: "a" } }`} {
		for n := range 4 {
			name := fmt.Sprint(name, n)
			files[name+"/config.pbtxt"], files[name+"/1/w"] = config, "1"
		}
	}
	files["good/config.pbtxt"], files["good/1/w"] = identity, "1"
	cfg.Paths, cfg.TempDir = append(cfg.Paths, write(t, t.TempDir(), files)), t.TempDir()
	d := deps(w)
	d.Agents = w.agent()
	return New(cfg, d), w
}

// ended waits for what f returns.
func ended(t *testing.T, what string, f func() error) error {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- f() }()
	select {
	case err := <-over:
		return err
	case <-time.After(10 * time.Second):
		t.Fatalf("still not over: %s", what)
		return nil
	}
}

// closed lets everything go on, closes the repository and looks whether all was freed once.
func closed(t *testing.T, r *Repository, w *hangingWorkers) {
	t.Helper()
	close(w.let)
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	for _, l := range w.all {
		if n := l.unloaded.Load(); n != 1 {
			t.Errorf("%s was freed %d times", l.spec.Name, n)
		}
	}
	if left, err := filepath.Glob(filepath.Join(r.scratch.root(), "gateway-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}
}

// begun starts a load call by a caller.
func begun(r *Repository, caller, name string, call *Override) chan error {
	over := make(chan error, 1)
	go func() { over <- r.Load(infer.WithCaller(context.Background(), caller), name, call) }()
	return over
}

// queues says that a load of the model has begun.
func (r *Repository) queues(name string) func() bool {
	return func() bool {
		r.pending.mu.Lock()
		defer r.pending.mu.Unlock()
		return len(r.pending.all[name]) == 2
	}
}

// An unload ends the load of its model that is under way, whatever that waits for.
func TestUnloadEndsALoad(t *testing.T) {
	config := `{"backend":"identity","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,3]}],
"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,3]}]}`
	for _, tc := range []struct {
		name string
		call *Override
	}{{"worker0", &Override{}}, {"warmup0", &Override{}}, {"describe0", &Override{}}, {"agent0", &Override{}},
		{"worker1", &Override{Config: &config, Files: map[string][]byte{"1/w": []byte("x")}}}, {"queued", &Override{}}} {
		t.Run(tc.name, func(t *testing.T) {
			r, w := hostile(t, Config{Mode: Explicit, LoadThreads: 1}, map[string]string{"queued/config.pbtxt": identity, "queued/1/": ""})
			defer closed(t, r, w)
			if err := r.LoadAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			hangs := w.hangs(tc.name)
			if tc.name == "queued" {
				begun(r, "a", "worker3", &Override{})
				eventually(t, "another hangs", w.hangs("worker3"))
				hangs = r.queues("queued")
			}
			load := begun(r, "a", tc.name, tc.call)
			eventually(t, "it hangs", hangs)
			if err := ended(t, "the unload", func() error { return r.Unload(t.Context(), tc.name, false) }); err != nil {
				t.Error(err)
			}
			err := ended(t, "the load", func() error { return <-load })
			fails(t, err, infer.Cancelled, "load of model '"+tc.name+"' was overtaken by an unload")
			if got := index(r); strings.Contains(got, tc.name+" 1 READY") || strings.Contains(got, tc.name+" 1 LOADING") {
				t.Errorf("index %s", got)
			}
		})
	}
}

// A load of something else ends the one before; one of the same comes after it.
func TestLaterLoadEndsALoad(t *testing.T) {
	r, w := hostile(t, Config{Mode: Explicit}, map[string]string{})
	defer closed(t, r, w)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := begun(r, "a", "warmup0", &Override{})
	eventually(t, "it hangs", w.hangs("warmup0"))
	again := begun(r, "a", "warmup0", &Override{})
	select {
	case err := <-first:
		t.Fatalf("the load was ended by one of the same: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	config := `{"backend":"identity","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,3]}],
"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,3]}]}`
	if err := ended(t, "the later load", func() error { return r.Load(t.Context(), "warmup0", &Override{Config: &config}) }); err != nil {
		t.Error(err)
	}
	for _, load := range []chan error{first, again} {
		err := ended(t, "the load before", func() error { return <-load })
		fails(t, err, infer.Cancelled, "load of model 'warmup0' was overtaken by a later load of something else")
	}
	if got := index(r); !strings.Contains(got, "warmup0 1 READY\n") {
		t.Errorf("index %s", got)
	}
	changed := begun(r, "a", "worker0", &Override{})
	eventually(t, "it hangs", w.hangs("worker0"))
	write(t, r.cfg.Paths[0], map[string]string{"worker0/1/w": "another"})
	begun(r, "a", "worker0", &Override{})
	err := ended(t, "the load of what was there", func() error { return <-changed })
	fails(t, err, infer.Cancelled, "load of model 'worker0' was overtaken by a later load of something else")
}

// A caller's loads that never end don't keep another's from a load thread.
func TestOneCallerDoesNotHoldAllLoadThreads(t *testing.T) {
	for _, phase := range []string{"worker", "warmup", "describe"} {
		t.Run(phase, func(t *testing.T) {
			r, w := hostile(t, Config{Mode: Explicit}, map[string]string{})
			defer closed(t, r, w)
			if err := r.LoadAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := range 4 {
				begun(r, "mallory", fmt.Sprint(phase, n), &Override{})
			}
			eventually(t, "three of them have a thread", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.at) >= 3
			})
			if err := ended(t, "another's load", func() error { return <-begun(r, "alice", "good", &Override{}) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// An ensemble whose step is never loaded keeps no other ensemble from being loaded, and no step's
// load from being answered.
func TestEnsembleWhoseStepHangs(t *testing.T) {
	r, w := hostile(t, Config{Mode: Explicit}, map[string]string{
		"bad/config.pbtxt": ensemble("worker0"), "bad/1/": "", "parked/config.pbtxt": ensemble("good", "worker1"), "parked/1/": "",
		"fine/config.pbtxt": ensemble("good"), "fine/1/": ""})
	defer closed(t, r, w)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	bad := begun(r, "mallory", "bad", &Override{})
	begun(r, "mallory", "parked", &Override{})
	eventually(t, "they hang", func() bool { return w.hangs("worker0")() && w.hangs("worker1")() })
	for _, name := range []string{"good", "fine"} {
		if err := ended(t, name, func() error { return <-begun(r, "alice", name, &Override{}) }); err != nil {
			t.Error(err)
		}
	}
	if err := ended(t, "the unload of the ensemble", func() error { return r.Unload(t.Context(), "bad", true) }); err != nil {
		t.Error(err)
	}
	err := ended(t, "the load of the ensemble", func() error { return <-bad })
	fails(t, err, infer.Cancelled, "load of model 'bad' was overtaken by an unload")
}

// A start with models whose warm-up never ends is over when their time is, and serves the others;
// what a worker does not end keeps no load thread for ever.
func TestStartWithWarmUpThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := hostile(t, Config{Mode: Explicit, Startup: []string{"warmup0", "warmup1", "warmup2", "warmup3", "good"}, WarmupTime: time.Minute,
			StrictReadiness: true}, map[string]string{})
		defer closed(t, r, w)
		begin := time.Now()
		err := r.LoadAll(t.Context())
		if took := time.Since(begin); took < time.Minute || took > 2*time.Minute {
			t.Errorf("the start took %v, want a minute, or a little more", took)
		}
		const want = "warm-up of 'warmup0' version 1 did not end in 1m0s (--model-warmup-max-secs): 0 of 2 batches ran"
		if err == nil || !strings.Contains(err.Error(), want) || infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("got %v of code %v, want %s", err, infer.CodeOf(err), want)
		}
		if ok, err := r.ModelReady("good", ""); !ok || r.Ready() {
			t.Errorf("good is ready: %v (%v), the server: %v", ok, err, r.Ready())
		}
		time.Sleep(abandonedTime)
		synctest.Wait()
		r.threads.mu.Lock()
		defer r.threads.mu.Unlock()
		if r.threads.state.free != 4 {
			t.Errorf("%d load threads are free, want 4", r.threads.state.free)
		}
	})
}

// So is a start with models that a worker never has loaded.
func TestStartWithLoadsThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := hostile(t, Config{Mode: Explicit, Startup: []string{"worker0", "worker1", "worker2", "worker3", "good"}, LoadTime: time.Minute}, map[string]string{})
		defer closed(t, r, w)
		begin := time.Now()
		err := r.LoadAll(t.Context())
		const want = "'worker3' version 1 did not load in 1m0s (--model-load-max-secs)"
		if took := time.Since(begin); took > 2*time.Minute || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %v: %v, want %s", took, err, want)
		}
		if ok, err := r.ModelReady("good", ""); !ok {
			t.Errorf("good is not ready: %v", err)
		}
	})
}

// A poll goes on while a load of the one before is under way, and ends it when its folder has
// changed or is gone.
func TestPollWhileALoadHangs(t *testing.T) {
	r, w := hostile(t, Config{Mode: Poll, PollInterval: 20 * time.Millisecond}, map[string]string{})
	defer closed(t, r, w)
	dir := r.cfg.Paths[0]
	kept := t.TempDir()
	for _, name := range must(r.find(t.Context(), "")) {
		if name.Name != "good" {
			if err := os.Rename(name.Dir, filepath.Join(kept, name.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer running.Wait()
	defer stop()
	for _, name := range []string{"worker0", "warmup0"} {
		if err := os.Rename(filepath.Join(kept, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "they hang", func() bool { return w.hangs("worker0")() && w.hangs("warmup0")() })
	write(t, dir, map[string]string{".new/config.pbtxt": identity, ".new/1/w": "1"})
	if err := os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "new")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new model is served", func() bool { ok, _ := r.ModelReady("new", ""); return ok })
	write(t, dir, map[string]string{"warmup0/config.pbtxt": identity})
	eventually(t, "the changed model is served", func() bool { ok, _ := r.ModelReady("warmup0", ""); return ok })
	if err := os.RemoveAll(filepath.Join(dir, "worker0")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the model whose folder is gone is forgotten", func() bool { return !strings.Contains(index(r), "worker0") })
}

// A caller's load calls are bounded, another's are not counted with them, and an unload is always
// taken.
func TestLoadCallsOfOneCallerAreBounded(t *testing.T) {
	r, w := hostile(t, Config{Mode: Explicit, LoadQueue: 2}, map[string]string{})
	defer closed(t, r, w)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := begun(r, "mallory", "worker0", &Override{})
	begun(r, "mallory", "worker1", &Override{})
	eventually(t, "they hang", func() bool { return w.hangs("worker0")() && w.hangs("worker1")() })
	err := ended(t, "one too many", func() error { return <-begun(r, "mallory", "good", &Override{}) })
	fails(t, err, infer.ResourceExhausted, "2 load calls of this caller wait or are under way, the most of --model-load-queue-size is 2")
	if err := ended(t, "another's load", func() error { return <-begun(r, "alice", "good", &Override{}) }); err != nil {
		t.Error(err)
	}
	if err := ended(t, "an unload", func() error { return r.Unload(infer.WithCaller(t.Context(), "mallory"), "worker0", false) }); err != nil {
		t.Error(err)
	}
	<-first
	if err := ended(t, "a load after it", func() error { return <-begun(r, "mallory", "good", &Override{}) }); err != nil {
		t.Error(err)
	}
}

// The files of a caller's load calls are bounded together, as long as they are on disk, and held
// by no load that waits.
func TestFilesOfOneCallerAreBounded(t *testing.T) {
	r, w := hostile(t, Config{Mode: Explicit, LoadFiles: 100, LoadThreads: 1}, map[string]string{})
	defer closed(t, r, w)
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	config := `{"backend":"identity","max_batch_size":8,"input":[{"name":"in","data_type":"TYPE_FP32","dims":[2,3]}],
"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2,3]}]}`
	files := func(n int) *Override {
		return &Override{Config: &config, Files: map[string][]byte{"1/w": make([]byte, n)}}
	}
	first := begun(r, "mallory", "worker0", files(60))
	eventually(t, "it hangs", w.hangs("worker0"))
	second := begun(r, "mallory", "good", files(40))
	eventually(t, "it waits", func() bool {
		r.pending.mu.Lock()
		defer r.pending.mu.Unlock()
		l := r.pending.all["good"]
		return len(l) == 2 && l[1].call.Files == nil
	})
	err := ended(t, "one byte too many", func() error { return <-begun(r, "mallory", "new", files(1)) })
	fails(t, err, infer.ResourceExhausted, "the files of this load call have 1 bytes, and those of the caller's models 100, "+
		"the most of --model-load-files-byte-size is 100")
	for name, load := range map[string]chan error{"worker0": first, "good": second} {
		if err := ended(t, "the unload", func() error { return r.Unload(t.Context(), name, false) }); err != nil {
			t.Error(err)
		}
		<-load
	}
	eventually(t, "the files that waited are gone", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.files["mallory"] == 60 })
	if err := ended(t, "another's load", func() error { return <-begun(r, "alice", "worker0", files(101)) }); infer.CodeOf(err) != infer.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}
