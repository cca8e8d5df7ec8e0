package workers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// model is one loaded version. It belongs to the connection that loaded it.
type model struct {
	handle    uint64
	spec      backend.Spec
	info      backend.Info // of its backend
	loaded    backend.Model
	instances []*instance
	queues    []*queue      // by instance; nil for those on the lane. Valid after ready
	ready     chan struct{} // closed when load has returned

	requestContext bool // its requests come with their context
	openRequests   int  // most open requests of an instance that was freed
	keeps          bool // its backend may keep batches

	err error // of load; valid after ready

	stopOnce sync.Once
	stopped  chan struct{} // closed when everything is closed
	stopErr  error         // valid after stopped
}

// specOf turns a request into what a backend is told.
func specOf(name string, version int64, dir, file string) (backend.Spec, error) {
	for _, path := range []string{dir, file} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return backend.Spec{}, infer.Errorf(infer.InvalidArg, "model '%s': its paths are not absolute and clean", name)
		}
	}
	return backend.Spec{Name: name, Version: version, ModelDir: dir, ModelFile: file}, nil
}

// describeSpec finds the model's folder and version from <repository>/<model>/<version>/<file>,
// where the config's file may lie in folders of the version's.
func describeSpec(r *worker.DescribeRequest) (backend.Spec, error) {
	folder := filepath.Dir(r.GetModelFile())
	if name := r.GetConfig().GetDefaultModelFilename(); name != "" {
		if version, ok := strings.CutSuffix(r.GetModelFile(), "/"+filepath.Clean(name)); ok {
			folder = version
		}
	} else if _, err := strconv.ParseUint(filepath.Base(r.GetModelFile()), 10, 63); err == nil {
		folder = r.GetModelFile() // the version's: no file is named
	}
	version, err := strconv.ParseInt(filepath.Base(folder), 10, 64)
	if err != nil {
		version = 1
	}
	spec, err := specOf(r.GetConfig().GetName(), version, filepath.Dir(folder), r.GetModelFile())
	if err == nil {
		spec.BackendFile, err = backendFile(r.GetConfig().GetName(), r.GetOptions())
	}
	spec.Config, spec.Inspect = r.GetConfig(), r.GetInspect()
	return spec, err
}

// backendFile is the file of a backend that another one runs; "" for none.
func backendFile(model string, o *worker.BackendOptions) (string, error) {
	if file := o.GetFile(); file != "" && (!filepath.IsAbs(file) || filepath.Clean(file) != file) {
		return "", infer.Errorf(infer.InvalidArg,
			"model '%s': the path of its backend's file is not absolute and clean", model)
	}
	return o.GetFile(), nil
}

// load builds the model and its instances; on an error nothing of it is left.
func (m *model) load(ctx context.Context, w *Worker, c *connection, r *worker.LoadRequest) error {
	b, err := w.backendFor(w.backendName(r.GetConfig(), r.GetOptions()), r.GetOptions().GetOptions())
	if err != nil {
		return err
	}
	m.info = b.Info()
	specs := make([]backend.InstanceSpec, len(r.GetInstances()))
	for i, s := range r.GetInstances() {
		if specs[i], err = w.instanceSpec(s); err != nil {
			return err
		}
	}
	s := c.sharedWith(r.GetLike(), m)
	if s == nil {
		s = share()
		s.handle.Store(m.handle)
		if c.calls.on.Load() {
			m.spec.Gateway = &gatewayFor{calls: c.calls, model: &s.handle}
		}
		if s.Model, err = w.loadBackend(ctx, b, m.spec); err != nil {
			return err
		}
	}
	m.loaded = s
	m.openRequests = openRequests(b.Info(), m.spec.Config)
	m.requestContext = b.Info().RequestContext
	m.keeps = b.Info().OpenRequests > 0
	if err = m.addInstances(ctx, w, c, r.GetInstances(), specs); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, m.stop(w))
	}
	s.handle.Store(m.handle)
	return nil
}

// scattered are the outputs that the gateway cuts: none, where the backend does it.
func (m *model) scattered() scattered {
	if m.info.Ragged {
		return nil
	}
	return scatteredOf(m.spec.Config)
}

// beginUnload stops the model once, in a goroutine that the worker waits for.
func (m *model) beginUnload(c *connection) {
	m.stopOnce.Do(func() {
		c.worker.running.Go(func() {
			<-m.ready
			if m.err == nil {
				m.stopErr = m.stop(c.worker)
			}
			c.remove(m)
			close(m.stopped)
		})
	})
}

// unload waits until the model is unloaded or ctx ends.
func (m *model) unload(ctx context.Context, c *connection) error {
	m.beginUnload(c)
	select {
	case <-m.stopped:
		return m.stopErr
	case <-ctx.Done():
		return fmt.Errorf("model '%s' is still being unloaded: %w", m.spec.Name, context.Cause(ctx))
	}
}

// stop ends the instances after the batches that they have, then closes the model.
func (m *model) stop(w *Worker) error {
	for _, inst := range m.instances {
		inst.transport.close()
	}
	var errs []error
	w.hostMemory.moved(func() {
		for _, inst := range m.instances {
			<-inst.done
			errs = append(errs, inst.closeErr)
		}
		if m.loaded != nil {
			errs = append(errs, w.closeModel(m))
		}
		if len(m.instances) > 0 {
			m.instances[0].connection.drain()
		}
		w.trim()
		debug.FreeOSMemory() // the instances' scratch memory
	})
	return errors.Join(errs...)
}

// loadBackend guards Load against panics.
func (w *Worker) loadBackend(ctx context.Context, b backend.Backend, spec backend.Spec) (m backend.Model, err error) {
	defer w.recovered(spec.Name, "loading the model", &err)
	return b.Load(ctx, spec)
}

func (w *Worker) describeBackend(ctx context.Context, b backend.Backend, spec backend.Spec) (d *backend.Description, err error) {
	defer w.recovered(spec.Name, "reading the model file", &err)
	return b.Describe(ctx, spec)
}

func (w *Worker) closeModel(m *model) (err error) {
	defer w.recovered(m.spec.Name, "closing the model", &err)
	return m.loaded.Close()
}

func (w *Worker) recovered(model, doing string, err *error) {
	v := recover()
	if v == nil {
		return
	}
	w.faults.Add(1)
	w.log.Error("a backend panicked", "model", model, "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	*err = infer.Errorf(infer.Internal, "the model's backend failed in %s", doing)
}

// backendName is the backend that runs a model: the one that the gateway found for it, that of
// its config, or where the config is silent the one that has its platform.
func (w *Worker) backendName(c *modelconfig.ModelConfig, o *worker.BackendOptions) string {
	if o.GetRuntime() != "" {
		return o.GetRuntime()
	}
	if c.GetBackend() != "" {
		return c.GetBackend()
	}
	for _, name := range slices.Sorted(maps.Keys(w.deps.Backends)) {
		b, err := w.backendFor(name, nil)
		if err != nil {
			continue
		}
		for _, f := range b.Info().Formats {
			if f.GetPlatform() == c.GetPlatform() && f.GetPlatform() != "" {
				return name
			}
		}
	}
	return c.GetPlatform()
}

// instanceSpec checks that an instance can live in this process.
func (w *Worker) instanceSpec(s *worker.InstanceSpec) (backend.InstanceSpec, error) {
	spec := backend.InstanceSpec{Name: s.GetName(), Profiles: s.GetProfile()}
	if s.GetKind() != worker.Device_GPU {
		return spec, nil
	}
	if !w.config.Device.GPU || w.config.Device.Index != int(s.GetDeviceId()) {
		return spec, infer.Errorf(infer.InvalidArg, "instance '%s' wants GPU %d, this worker has %v", s.GetName(), s.GetDeviceId(), w.config.Device)
	}
	spec.GPU, spec.Device = true, w.config.Device.Index
	return spec, nil
}
