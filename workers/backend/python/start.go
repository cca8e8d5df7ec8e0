package python

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// loadJSON is the body of LOAD.
type loadJSON struct {
	ModelFile    string            `json:"model_file"`
	Module       string            `json:"module"`
	Path         []string          `json:"path"`
	ModelDir     string            `json:"model_dir"` // the version's folder
	Name         string            `json:"name"`
	Version      string            `json:"version"`
	Instance     string            `json:"instance"`
	Decoupled    bool              `json:"decoupled"`
	AsyncBatches int               `json:"async_batches"`
	Instances    int               `json:"instances"`
	Options      map[string]string `json:"options"` // the config's parameters
}

// start starts a process and has the model imported and initialized.
func (in *instance) start(ctx context.Context) (*run, error) {
	r, err := in.model.imported(ctx, in.name, in.place(), in.log)
	if err != nil {
		return nil, err
	}
	defer r.bound(ctx, in.model.limits.initialize)()
	if err = r.initialize(in); err != nil {
		return nil, r.discard(err)
	}
	return r, nil
}

// imported is a process that has imported the model: the one that has completed its config, or
// a new one.
func (m *model) imported(ctx context.Context, name string, at *place, log *slog.Logger) (*run, error) {
	if r := m.backend.described.take(m, name); r != nil {
		r.owner.Store(m)
		m.metrics.adopt(r)
		return r, nil
	}
	r, err := newRun(ctx, m, name, at, log)
	if err != nil {
		return nil, err
	}
	defer r.bound(ctx, m.limits.initialize)()
	if err = r.greet(name); err != nil {
		return nil, r.discard(err)
	}
	return r, nil
}

// place says with which instances it may share a process.
func (in *instance) place() *place {
	at := &place{group: in.name, device: -1}
	if i := strings.LastIndexByte(in.name, '_'); i > 0 {
		at.group = in.name[:i]
	}
	if in.spec.GPU {
		at.device = in.spec.Device
	}
	return at
}

// bound kills the process when ctx ends or limit has passed, unless stop is called before.
func (r *run) bound(ctx context.Context, limit time.Duration) (stop func()) {
	late := time.AfterFunc(limit, func() {
		r.hung(infer.Errorf(infer.Internal, "import and initialize took longer than %v", limit))
	})
	unwatch := context.AfterFunc(ctx, func() { r.kill(context.Cause(ctx)) })
	return func() {
		late.Stop()
		unwatch()
	}
}

// discard ends a process that did not come to serve, because of err.
func (r *run) discard(err error) error {
	r.process.Kill()
	return errors.Join(err, r.close())
}

// greet waits for the runner and has it import the model.
func (r *run) greet(name string) error {
	f, err := r.result(channel.Hello, false)
	if err != nil {
		return r.died(err)
	}
	d := channel.NewDecoder(f.Body, nil)
	r.hello = hello{protocol: d.U32(), python: d.String(), implementation: d.String(), numpy: d.String()}
	if d.Err() != nil || r.hello.protocol != channel.Protocol {
		return r.died(r.corrupt("a runner of protocol %d", r.hello.protocol))
	}
	m := r.model()
	body, err := json.Marshal(loadJSON{ModelFile: m.file, Module: m.module(), Path: m.path(),
		ModelDir: m.versionDir(), Name: m.spec.Name,
		Version: strconv.FormatInt(m.spec.Version,
			10), Instance: name, Decoupled: m.decoupled, AsyncBatches: m.limits.asynced,
		Instances: max(m.limits.together, 1), Options: m.parameters()})
	if err != nil {
		return infer.Errorf(infer.Internal, "%w", err)
	}
	var e channel.Encoder
	e.String(string(body))
	if f, err = r.command(channel.Load, channel.Loaded, 0, e.Body(), false); err != nil {
		return r.died(err)
	}
	if f.Kind == channel.Failed {
		return r.failed(f, "the model can't be imported")
	}
	d = channel.NewDecoder(f.Body, nil)
	r.loaded = d.U32()
	if d.Err() != nil {
		return r.died(r.corrupt("%v", d.Err()))
	}
	return nil
}

// initialize has the model initialize.
func (r *run) initialize(in *instance) error {
	body, err := json.Marshal(in.args())
	if err != nil {
		return infer.Errorf(infer.Internal, "%w", err)
	}
	var e channel.Encoder
	e.String(string(body))
	f, err := r.command(channel.Initialize, channel.Initialized, 0, e.Body(), false)
	if err != nil {
		return r.died(err)
	}
	if f.Kind == channel.Failed {
		return r.failed(f, "the model can't be initialized")
	}
	return nil
}

// args are those of a model's initialize.
func (in *instance) args() map[string]string {
	m := in.model
	kind, device := "CPU", 0
	if in.spec.GPU {
		kind, device = "GPU", in.spec.Device
	}
	groups := m.spec.Config.GetInstanceGroup()
	if len(groups) > 0 && groups[0].GetKind() == modelconfig.ModelInstanceGroup_KIND_MODEL {
		kind = "MODEL"
	}
	return map[string]string{
		"model_config":             string(m.config),
		"model_instance_kind":      kind,
		"model_instance_name":      in.name,
		"model_instance_device_id": strconv.Itoa(device),
		"model_repository":         m.spec.ModelDir,
		"model_version":            strconv.FormatInt(m.spec.Version, 10),
		"model_name":               m.spec.Name,
	}
}

// module is the name under which the model is imported.
func (m *model) module() string {
	if m.spec.BackendFile != "" {
		return "model"
	}
	return filepath.Base(filepath.Dir(m.file)) + "." + strings.TrimSuffix(filepath.Base(m.file), ".py")
}

// path is what sys.path ends with.
func (m *model) path() []string {
	path := []string{filepath.Dir(m.file), m.spec.ModelDir}
	if m.spec.BackendFile != "" {
		path = []string{m.versionDir(), m.spec.ModelDir, filepath.Dir(m.file)}
	}
	return path
}

// parameters are the config's.
func (m *model) parameters() map[string]string {
	all := map[string]string{}
	for name, v := range m.spec.Config.GetParameters() {
		all[name] = v.GetStringValue()
	}
	return all
}

// failed is the failure that FAILED tells. The traceback goes to the log.
func (r *run) failed(f channel.Frame, what string) error {
	message := r.logFailed(f, what)
	return infer.Errorf(infer.Internal, "%s", message)
}

// logFailed logs what FAILED tells, and gives the text for clients.
func (r *run) logFailed(f channel.Frame, what string) string {
	d := channel.NewDecoder(f.Body, nil)
	d.U8()
	message, trace := d.String(), d.String()
	if d.Err() != nil {
		r.kill(d.Err())
		return "the model failed, and its process can't say how"
	}
	r.log.Error(what, "error", message, "traceback", trace)
	return message
}

// died is the failure of a load whose process ended: the text is Triton's, the cause, and what the
// process wrote last.
func (r *run) died(err error) error {
	if last := r.process.Last(); last != "" {
		return infer.Errorf(infer.Internal, "%w; its last output:\n%s", errors.Unwrap(err), last)
	}
	return infer.Errorf(infer.Internal, "%w", errors.Unwrap(err))
}
