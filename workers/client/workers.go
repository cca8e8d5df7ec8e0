package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/shm"
)

// Workers are all workers of a gateway. Its methods are safe for concurrent use.
type Workers struct {
	cfg      Config
	log      *slog.Logger
	budget   *infer.Budget // Deps.Responses
	memory   *shm.Arena
	workers  []*worker                 // the configured ones
	list     atomic.Pointer[[]*worker] // these and those of own
	own      processes
	regions  regionTable
	resident residentTable
	numbers  atomic.Uint64 // of workers
	slots    answerSlots
	calls    Calls // nil: models make none

	// supervised supervises a worker until stop is called or Workers is closed; then it calls ended.
	supervised func(k *worker, first chan<- error, ended func()) (stop context.CancelFunc)

	handles  atomic.Uint64
	cancel   context.CancelFunc
	running  sync.WaitGroup // of supervise
	failures sync.WaitGroup // of deliveries of what could not be sent

	forgetting sync.WaitGroup // of closing regions in workers
}

// Device is where instances can live.
type Device struct {
	Worker string // "cpu", "gpu:0" or a remote worker's address
	Local  bool
	GPU    bool
	ID     int // CUDA ordinal on its host; 0 for a CPU
	UUID   string
	Name   string
	Memory int64 // bytes
}

// Backend is what a worker can execute models with, and what it says of it. The message is
// read-only.
type Backend struct {
	Worker string
	*workerpb.Backend
}

// State is a worker's state now.
type State struct {
	Worker   string
	Local    bool
	Up       bool
	PID      int64 // of the last process; 0 before the first
	Restarts int
	Since    time.Time               // it is up, or down, since then
	Report   *workerpb.WatchResponse // the last one; nil while it is down. Read-only
}

// Start starts the local workers and connects to the remote ones, each on a goroutine
// that Close ends. It returns when all have said hello. A local worker that does not
// is an error, and then nothing is left running; a remote one is tried again. Where all
// are remote, Start waits for them up to Config.StartTimeout: the containers of a pod
// start in any order. When ctx ends Start gives up; afterwards ctx has no meaning.
func Start(ctx context.Context, cfg Config, deps Deps) (*Workers, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	w := &Workers{cfg: cfg, log: deps.Log, budget: deps.Responses, calls: deps.Calls}
	var err error
	if cfg.sharesMemory() {
		w.memory, err = shm.NewArena("sluice-requests", cfg.RequestArena)
	} else {
		w.memory, err = shm.NewHeap(cfg.RequestArena)
	}
	if err != nil {
		return nil, err
	}
	w.memory.ReserveSmall()
	for i := range cfg.Local {
		k := newWorker(w, cfg.Local[i].name())
		k.local = &cfg.Local[i]
		w.workers = append(w.workers, k)
	}
	for i := range cfg.Remote {
		k := newWorker(w, cfg.Remote[i].Address)
		k.far = &cfg.Remote[i]
		w.workers = append(w.workers, k)
	}
	w.listLocked() // nobody else has w yet
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	w.supervised = func(k *worker, first chan<- error, ended func()) context.CancelFunc {
		own, stop := context.WithCancel(run)
		w.running.Go(func() {
			defer ended()
			k.supervise(own, first)
		})
		return stop
	}
	stop := context.AfterFunc(ctx, cancel)
	first := make(chan error, len(w.workers))
	for _, k := range w.workers {
		w.running.Go(func() {
			started := make(chan error, 1)
			w.running.Go(func() { first <- k.started(run, <-started) })
			k.supervise(run, started)
		})
	}
	var errs []error
	for range w.workers {
		errs = append(errs, <-first)
	}
	err = errors.Join(errs...)
	if !stop() {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, w.Close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

// started judges a worker's first start.
func (w *worker) started(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if w.local != nil && w.local.Program {
		w.log.Warn("the program of a backend does not serve; it is started again, but models of its backend don't load "+
			"meanwhile", "error", err)
		return nil
	}
	if w.far != nil {
		if len(w.owner.cfg.Local) == 0 && w.waitUp(ctx) {
			return nil
		}
		w.log.Warn("remote worker is not there; it is tried again, but what is loaded meanwhile gets no instances on it", "error", err)
		return nil
	}
	return fmt.Errorf("worker %s: %w", w.name, err)
}

// waitUp waits until the worker is up, for a bounded time.
func (w *worker) waitUp(ctx context.Context) bool {
	w.log.Info("waiting for the worker", "timeout", w.owner.cfg.StartTimeout)
	ctx, stop := context.WithTimeout(ctx, w.owner.cfg.StartTimeout)
	defer stop()
	_, err := w.current(ctx)
	return err == nil
}

// Close ends all workers and waits for them; when ctx ends first, their processes are
// killed. What is in flight fails. No version and no memory may be used any more; where
// memory still is, it stays mapped and the error says so.
func (w *Workers) Close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.kill)
	defer stop()
	w.own.shut()
	w.cancel()
	w.running.Wait()
	w.forgetting.Wait()
	for _, k := range w.all() {
		k.mu.Lock()
		groups := k.groupsLocked()
		clear(k.groups)
		k.mu.Unlock()
		for _, g := range groups {
			g.stop()
		}
	}
	w.failures.Wait()
	if n := w.memory.InUse(); n > 0 {
		return fmt.Errorf("workers: %d bytes of tensor memory are still in use", n)
	}
	return w.memory.Close()
}

func (w *Workers) kill() {
	for _, k := range w.all() {
		k.mu.Lock()
		s := k.session
		k.mu.Unlock()
		if s != nil && s.process != nil {
			s.process.kill()
		}
	}
}

// Memory is where bodies and batches are laid out: the request arena, or private
// memory where all workers are remote.
func (w *Workers) Memory() *shm.Arena { return w.memory }

// Layout is Memory for schedulers, whose batches may also name, in place of a copy, what
// the worker has answered: see Layout.
func (w *Workers) Layout() *Layout { return &Layout{Arena: w.memory, w: w} }

// Scarce says that answers which are still held take at least half of the memory that a
// worker of this host answers into, or that one had none for a result in the last two seconds.
func (w *Workers) Scarce() bool {
	for _, k := range w.all() {
		k.mu.Lock()
		s := k.session
		scarce := s != nil && s.memory != nil && s.memory.scarce()
		k.mu.Unlock()
		if scarce {
			return true
		}
	}
	return false
}

// Ready says that every worker is up. A program that never served is not waited for.
func (w *Workers) Ready() bool {
	for _, k := range w.all() {
		k.mu.Lock()
		up := k.session != nil || k.local != nil && k.local.Program && k.hello == nil
		k.mu.Unlock()
		if !up {
			return false
		}
	}
	return true
}

// States are the workers' states, local ones first.
func (w *Workers) States() []State {
	states := make([]State, 0, len(w.all()))
	for _, k := range w.all() {
		k.mu.Lock()
		s := State{Worker: k.name, Local: k.local != nil, Up: k.session != nil, PID: k.hello.GetPid(), Restarts: k.restarts,
			Since: k.since, Report: k.report}
		k.mu.Unlock()
		states = append(states, s)
	}
	return states
}

// greeting is a worker's last hello; nil before the first.
func (w *worker) greeting() *workerpb.HelloResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hello
}

// Devices are those of all workers that said hello, local ones first.
func (w *Workers) Devices() []Device {
	var devices []Device
	for _, k := range w.workers {
		for _, d := range k.greeting().GetDevices() {
			devices = append(devices, Device{Worker: k.name, Local: k.local != nil, GPU: d.Kind == workerpb.Device_GPU, ID: int(d.Id),
				UUID: d.Uuid, Name: d.Name, Memory: d.MemoryBytes})
		}
	}
	return devices
}

// Backends are those of all workers that said hello, local ones first.
func (w *Workers) Backends() []Backend {
	var backends []Backend
	for _, k := range w.workers {
		for _, b := range k.greeting().GetBackends() {
			backends = append(backends, Backend{k.name, b})
		}
	}
	return backends
}

// Describe asks a worker what a model file and its backend say of the model; of spec, the
// instances and what follows them don't count. Unsupported where they say nothing; other
// errors are the worker's, with its text.
func (w *Workers) Describe(ctx context.Context, spec *Spec) (*workerpb.DescribeResponse, error) {
	k, err := w.choose(spec.Backend, Instance{Name: spec.Config.GetName()}, nil)
	if err != nil {
		return nil, err
	}
	// What reads a model's file may end the process as its model may.
	k, err = w.hold(ctx, k, &Spec{Name: spec.Config.GetName(), Backend: spec.Backend, Config: spec.Config})
	if err != nil {
		return nil, err
	}
	defer w.letGo(k)
	s, err := k.await(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.client.Describe(ctx, &workerpb.DescribeRequest{
		Backend: spec.Backend, ModelFile: spec.ModelFile, Config: spec.Config, Options: spec.options(), Inspect: spec.Inspect})
	if err != nil {
		if lostDuring(s, err) {
			return nil, k.errLost()
		}
		return nil, fromStatus(err)
	}
	return m, nil
}

// choose finds the worker for an instance: the one with its device and the backend
// that has the fewest instances, counting those that more places already; among equals
// the first, and so a local one. An instance on a CPU goes to a worker of a GPU only
// where no other can have it.
func (w *Workers) choose(backend string, inst Instance, more map[*worker][]int) (*worker, error) {
	var best *worker
	var bestRank [2]int
	why := "no worker has it"
	for _, k := range w.workers {
		hello := k.greeting()
		at := slices.IndexFunc(hello.GetBackends(), func(b *workerpb.Backend) bool { return b.Name == backend })
		if at < 0 {
			continue
		}
		if b := hello.Backends[at]; b.Unavailable != "" {
			why = b.Unavailable
			continue
		}
		far, ok := distance(hello.Devices, inst)
		if !ok {
			why = "no worker that has it can have the instance " + inst.place()
			continue
		}
		rank := [2]int{far, w.placedOn(k) + len(more[k])}
		if best == nil || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = k, rank
		}
	}
	if best == nil {
		return nil, infer.Errorf(infer.InvalidArg, "backend '%s' can't be used for '%s': %s", backend, inst.Name, why)
	}
	return best, nil
}

// distance is 0 for a worker with the device that an instance asks for, and 1 for a
// worker that can stand in.
func distance(devices []*workerpb.Device, inst Instance) (int, bool) {
	if inst.GPU {
		return 0, slices.ContainsFunc(devices, func(d *workerpb.Device) bool {
			return d.Kind == workerpb.Device_GPU && int(d.Id) == inst.Device
		})
	}
	if slices.ContainsFunc(devices, func(d *workerpb.Device) bool { return d.Kind == workerpb.Device_CPU }) {
		return 0, true
	}
	return 1, true
}
