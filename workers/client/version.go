package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// Spec is a model version to be loaded. Load keeps it; nothing in it changes any more.
type Spec struct {
	Name      string
	Version   int64
	Namespace string // of its repository; "": namespaces are off
	ModelDir  string // absolute: <repository>/<model>
	ModelFile string // absolute: <repository>/<model>/<version>/<filename>
	Config    *modelconfig.ModelConfig
	Backend   string // that runs it: the config's, or one that runs BackendFile
	// BackendFile is the absolute path of the file that makes the config's backend; "": the
	// worker has it.
	BackendFile string
	Options     map[string]string // of --backend-config for the backend
	Inspect     bool              // for Describe: nothing of the model's is executed
	Instances   []Instance
	// Like is a loaded version that differs in its instances alone: workers that have it
	// use its model again and read no file. It must stay loaded until Load returns. nil:
	// none.
	Like *Version

	// Changed says that an instance went out of service, with its worker, or is back
	// in service. Right after Load they all are in service. It may be called before
	// Load has returned, from any goroutine, one call at a time for an instance; it
	// must return soon and not call Load or Unload. nil: nobody wants to know.
	Changed func(instance int, up bool)
}

// options are what a worker is told of the backend.
func (s *Spec) options() *workerpb.BackendOptions {
	o := &workerpb.BackendOptions{Options: s.Options, File: s.BackendFile}
	if s.Backend != s.Config.GetBackend() {
		o.Runtime = s.Backend
	}
	return o
}

// Instance is one instance of a version.
// Source: message ModelInstanceGroup, proto/modelconfig/model_config.proto.
type Instance struct {
	Name       string
	GPU        bool
	Device     int // CUDA ordinal; for a GPU
	Profiles   []string
	HostPolicy string
}

func (i Instance) place() string {
	if i.GPU {
		return fmt.Sprintf("on GPU %d", i.Device)
	}
	return "on a CPU"
}

// Version is a loaded model version. It stays loaded, through the lives of workers,
// until Unload.
type Version struct {
	groups    []*group
	executors []*executor // by instance
}

// Load loads a version onto the workers of its instances, at once, and waits until all
// of them can execute, or ctx ends. On an error nothing is loaded; its text is the
// worker's. Where workers die of it, it is tried three times, the last two without
// another version beside it; then the error is infer.ErrWorkerLost.
func (w *Workers) Load(ctx context.Context, spec Spec) (*Version, error) {
	v := &Version{executors: make([]*executor, len(spec.Instances))}
	places := map[*worker][]int{}
	for i := range spec.Instances {
		k, err := w.choose(spec.Backend, spec.Instances[i], places)
		if err != nil {
			return nil, err
		}
		places[k] = append(places[k], i)
	}
	for _, k := range w.workers {
		if len(places[k]) == 0 {
			continue
		}
		g, err := w.newGroup(ctx, k, &spec, places[k])
		if err != nil {
			return nil, errors.Join(err, v.Unload(ctx))
		}
		v.groups = append(v.groups, g)
		for n, i := range g.instances {
			v.executors[i] = g.executors[n]
		}
	}
	spec.Like = nil // the groups know what they need of it
	err := v.each(func(g *group) error { return g.loadFirst(ctx) })
	if err == nil {
		return v, nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.StartTimeout)
	defer cancel()
	if undo := v.Unload(clean); undo != nil {
		w.log.Error("a version that did not load was not unloaded", "model", spec.Name, "version", spec.Version, "error", undo)
	}
	return nil, err
}

// on is the version's group on a worker; nil: there is none.
func (v *Version) on(w *worker) *group {
	if v == nil {
		return nil
	}
	for _, g := range v.groups {
		if g.worker == w {
			return g
		}
	}
	return nil
}

// each runs f for all groups at once. Of several errors the first group's is it.
func (v *Version) each(f func(*group) error) error {
	errs := make([]error, len(v.groups))
	var wg sync.WaitGroup
	for i, g := range v.groups {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Executor executes batches on instance i. It stays the same through the lives of its
// worker; while there is none, batches fail with infer.ErrWorkerLost.
func (v *Version) Executor(i int) infer.Executor { return v.executors[i] }

// Memory is what the workers say that the version takes, as it was loaded last.
func (v *Version) Memory() []*workerpb.MemoryUsage {
	var all []*workerpb.MemoryUsage
	for _, g := range v.groups {
		g.worker.mu.Lock()
		all = append(all, g.memory...)
		g.worker.mu.Unlock()
	}
	return all
}

// Unload frees the version and waits until its memory is free; batches in flight
// finish first. Batches that come later fail as stopping. When ctx ends first it may
// be called again.
func (v *Version) Unload(ctx context.Context) error {
	return v.each(func(g *group) error { return g.unload(ctx) })
}
