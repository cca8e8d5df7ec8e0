package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// Sharing says which models are together in one process of this host: its end harms them, and no
// others, and frees all their memory.
type Sharing string

// The ways of sharing. Each is for each device apart.
const (
	// SharedProcess is the process that Config.Local names, with all models that want no other.
	SharedProcess Sharing = "shared"
	// BackendProcess is one process for the models of a backend.
	BackendProcess Sharing = "backend"
	// ModelProcess is one process for all versions of a model.
	ModelProcess Sharing = "model"
)

// ProcessParameter is the parameter of a model config that says in which process its model is, in
// the words of Sharing. It goes before Config.Processes.
const ProcessParameter = "worker_process"

// Valid says that it is one of the ways.
func (s Sharing) Valid() bool { return s == SharedProcess || s == BackendProcess || s == ModelProcess }

// processes are those that run beside the configured ones, for models that don't share these. Each
// is started when the first model needs it and ends with its last one.
type processes struct {
	mu     sync.Mutex
	all    map[string]*ownProcess // guarded by mu
	closed bool                   // guarded by mu: Workers is; none is started any more
}

// ownProcess is one of them.
type ownProcess struct {
	worker *worker
	beside *worker // the configured one in whose place it is
	key    string
	users  int           // guarded by processes.mu: groups, and calls that need it for a moment
	begun  chan struct{} // closed when its first start is over
	err    error         // of the first start; valid after begun
	stop   context.CancelFunc
	ended  chan struct{} // closed when nothing of it runs any more
}

// all are the workers that there are now, the configured ones first. The slice is only to be read.
func (w *Workers) all() []*worker { return *w.list.Load() }

// sharing is how a model shares its process.
func (w *Workers) sharing(spec *Spec) (Sharing, error) {
	if p, ok := spec.Config.GetParameters()[ProcessParameter]; ok {
		if s := Sharing(p.GetStringValue()); s.Valid() {
			return s, nil
		}
		return "", infer.Errorf(infer.InvalidArg, "parameter '%s' is '%s' for %s; there are %s, %s and %s", ProcessParameter,
			p.GetStringValue(), spec.Name, SharedProcess, BackendProcess, ModelProcess)
	}
	for _, backend := range []string{spec.Config.GetBackend(), spec.Backend, ""} {
		if s, ok := w.cfg.Processes[backend]; ok {
			return s, nil
		}
	}
	return SharedProcess, nil
}

// hold gives the worker for a model that k was chosen for: k itself, or a process beside it, which is
// started if it is not there. Who gets it calls letGo.
func (w *Workers) hold(ctx context.Context, k *worker, spec *Spec) (*worker, error) {
	how, err := w.sharing(spec)
	if err != nil || k.local == nil {
		return k, err
	}
	backend := spec.Backend
	if k.ownProcess(backend) { // whose models are of other backends, by their names
		backend = spec.Config.GetBackend()
		if how == SharedProcess {
			how = BackendProcess
		}
	}
	if how == SharedProcess {
		return k, nil
	}
	name, key := k.name+"/"+backend, k.name+"\x00"+backend
	if how == ModelProcess {
		name, key = name+"/"+spec.Name, key+"\x00"+spec.Name+"\x00"+spec.ModelDir
	}
	p, err := w.enter(k, name, key)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.begun:
		err = p.err
	case <-ctx.Done():
		err = infer.Errorf(infer.Cancelled, "start of a process for model '%s': %w", spec.Name, context.Cause(ctx))
	}
	if err != nil {
		w.letGo(p.worker)
		return nil, err
	}
	return p.worker, nil
}

// ownProcess says that a worker's backend wants its models in processes of their own.
func (w *worker) ownProcess(backend string) bool {
	for _, b := range w.greeting().GetBackends() {
		if b.GetName() == backend {
			return b.GetOwnProcess()
		}
	}
	return false
}

// enter finds or makes a process and adds a user to it.
func (w *Workers) enter(k *worker, name, key string) (*ownProcess, error) {
	o := &w.own
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.all[key]
	switch {
	case p != nil:
	case o.closed:
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the workers are stopped")
	case len(o.all) >= w.cfg.MaxProcesses:
		return nil, infer.Errorf(infer.ResourceExhausted,
			"no process can be started for '%s': there are %d beside the shared ones, which is "+
				"the most (--worker-process-limit)", name, len(o.all))
	default:
		p = w.startBeside(k, name, key)
		if o.all == nil {
			o.all = map[string]*ownProcess{}
		}
		o.all[key] = p
		w.listLocked()
	}
	p.users++
	return p, nil
}

// startBeside starts a process; processes.mu is held.
func (w *Workers) startBeside(k *worker, name, key string) *ownProcess {
	p := &ownProcess{worker: newWorker(w, name), beside: k, key: key, begun: make(chan struct{}),
		ended: make(chan struct{})}
	p.worker.local, p.worker.own = k.local, p
	started := make(chan error, 1)
	p.stop = w.supervised(p.worker, started, func() { close(p.ended) })
	w.running.Go(func() {
		if err := <-started; err != nil {
			p.err = fmt.Errorf("worker %s: %w", name, err)
		}
		close(p.begun)
	})
	return p
}

// letGo takes a user away. With the last one the process ends, and its memory is free when letGo returns.
func (w *Workers) letGo(k *worker) {
	p := k.own
	if p == nil {
		return
	}
	o := &w.own
	o.mu.Lock()
	p.users--
	over := p.users == 0
	if over {
		delete(o.all, p.key)
		w.listLocked()
	}
	o.mu.Unlock()
	if over {
		p.stop()
		<-p.ended // at most Config.KillAfter
		w.log.Info("worker has ended: no model needs it any more", "worker", k.name)
	}
}

// listLocked renews what all says; processes.mu is held.
func (w *Workers) listLocked() {
	all := append([]*worker(nil), w.workers...)
	for _, p := range w.own.all {
		all = append(all, p.worker)
	}
	w.list.Store(&all)
}

// placedOn counts the instances of a configured worker and of the processes beside it.
func (w *Workers) placedOn(k *worker) int {
	n := 0
	for _, other := range w.all() {
		if other == k || other.own != nil && other.own.beside == k {
			other.mu.Lock()
			n += other.placed
			other.mu.Unlock()
		}
	}
	return n
}

// shut lets no further process start.
func (o *processes) shut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}
