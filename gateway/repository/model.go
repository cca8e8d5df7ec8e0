package repository

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Model is a loaded version. Who got it from Acquire calls Release; all other methods
// may be called by any number of goroutines until then.
type Model struct {
	Name    string
	Version int64
	Config  *configpb.ModelConfig // completed; read-only
	// Scheduled is Config without what the backend does itself in place of the scheduler;
	// read-only.
	Scheduled *configpb.ModelConfig

	versionText string
	inputs      []tensor // in the config's order
	outputs     []tensor
	inputAt     map[string]int
	outputAt    map[string]int
	required    int // inputs that are not optional
	maxBatch    int64
	priorities  uint64 // levels; 0: requests' priorities are not looked at
	labels      map[string][]string
	states      map[string][]byte // initial ones, by their data_file
	places      bool              // instances take tensors in clients' memory
	decoupled   bool
	// token stands for the model in forms, which may outlive it. It is nil where a request's
	// data or more than its form decide whether it is valid, or where validation changes it.
	token *token

	workerWait time.Duration // Config.WorkerWait

	namespace string // its repository, where namespaces are on
	needs     []Need // an ensemble's steps; nil for all others

	generation generation

	stats     Stats
	scheduler schedule.Scheduler
	executors []infer.Executor
	loaded    Loaded // nil: an ensemble, which is in no worker
	lease     *lease

	// pins counts the requests that hold the model. Retiring adds retired, so a request
	// that comes late sees a negative number and looks again.
	pins    atomic.Int64
	leaving atomic.Bool   // retired was added to pins
	over    atomic.Bool   // drained is closed: late requests may pass the zero again
	drained chan struct{} // closed when retired and no pin is left

	mu      sync.Mutex
	up      []bool    // mu; instances in service
	rewarm  *rewarmer // mu; nil: instances that come back serve at once
	ready   atomic.Int32
	lost    atomic.Int64 // infer.Now when the last instance went out of service; 0: never
	changed func()       // called without mu
}

const retired = -1 << 40

// Executors are the model's instances; an ensemble has none.
func (m *Model) Executors() []infer.Executor { return m.executors }

// token is a value with an address of its own.
type token struct{ _ byte }

func newModel(plan *VersionPlan, changed func()) *Model {
	cfg := plan.Spec.Config
	m := &Model{
		Name: plan.Spec.Name, Version: plan.Spec.Version, Config: cfg, Scheduled: plan.Spec.scheduled(),
		versionText: strconv.FormatInt(plan.Spec.Version, 10),
		inputAt:     map[string]int{}, outputAt: map[string]int{},
		maxBatch:   int64(cfg.MaxBatchSize),
		priorities: cfg.GetDynamicBatching().GetPriorityLevels(),
		decoupled:  cfg.GetModelTransactionPolicy().GetDecoupled(),
		labels:     plan.Labels,
		states:     plan.States,
		drained:    make(chan struct{}),
		up:         make([]bool, len(plan.Spec.Instances)),
		changed:    changed,
		namespace:  plan.namespace,
		needs:      Needs(cfg),
	}
	for i := range m.up {
		m.up[i] = true
	}
	m.ready.Store(int32(len(m.up)))
	for i, in := range cfg.Input {
		t := newTensor(in.Name, in.DataType, in.Dims, in.Reshape)
		t.optional, t.shape, t.unlinear = in.Optional, in.IsShapeTensor, in.IsNonLinearFormatIo
		if !in.Optional {
			m.required++
		}
		m.inputs = append(m.inputs, t)
		m.inputAt[in.Name] = i
	}
	for i, out := range cfg.Output {
		t := newTensor(out.Name, out.DataType, out.Dims, out.Reshape)
		t.shape = out.IsShapeTensor
		m.outputs = append(m.outputs, t)
		m.outputAt[out.Name] = i
	}
	if !slices.ContainsFunc(m.inputs, func(t tensor) bool { return t.reshaped || t.datatype == infer.Bytes }) {
		m.token = &token{}
	}
	m.findPlaces()
	return m
}

// pin takes the model for a request; false where it is being retired.
func (m *Model) pin() bool {
	if m.pins.Add(1) > 0 {
		return true
	}
	m.Release()
	return false
}

// Release gives the model back.
func (m *Model) Release() {
	if m.pins.Add(-1) == retired && m.over.CompareAndSwap(false, true) {
		close(m.drained)
	}
}

// retire lets no further request take the model.
func (m *Model) retire() {
	if m.leaving.CompareAndSwap(false, true) && m.pins.Add(retired) == retired && m.over.CompareAndSwap(false, true) {
		close(m.drained)
	}
}

// instanceChanged is LoadSpec.Changed. News may come before the scheduler is there.
func (m *Model) instanceChanged(i int, up bool) {
	m.mu.Lock()
	if i < 0 || i >= len(m.up) {
		m.mu.Unlock()
		return
	}
	if m.rewarm != nil && !up {
		m.rewarm.down(i)
	}
	if m.up[i] == up {
		m.mu.Unlock()
		return
	}
	if m.rewarm != nil && up {
		m.rewarm.up(i, func(c *comeback) { m.warm(i, c) })
		m.mu.Unlock()
		return
	}
	m.setLocked(i, up)
	m.mu.Unlock()
	m.changed()
}

// warm puts an instance into service that has run its warm-up again.
func (m *Model) warm(i int, c *comeback) {
	m.mu.Lock()
	if !m.rewarm.arrived(i, c) {
		m.mu.Unlock()
		return
	}
	m.setLocked(i, true)
	m.mu.Unlock()
	m.changed()
}

func (m *Model) setLocked(i int, up bool) {
	m.up[i] = up
	if up {
		m.ready.Add(1)
	} else {
		m.lost.Store(infer.Now()) // who finds no instance finds since when
		m.ready.Add(-1)
	}
	if m.scheduler != nil {
		m.tell(i)
	}
}

// tell gives an instance's state to the scheduler; mu is held, so that news of one
// instance stay in order.
func (m *Model) tell(i int) {
	if m.up[i] {
		m.scheduler.InstanceUp(i)
	} else {
		m.scheduler.InstanceDown(i)
	}
}

func (m *Model) setScheduler(s schedule.Scheduler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scheduler = s
	for i, up := range m.up {
		if !up {
			m.tell(i)
		}
	}
}

// Ready says that at least one instance is in service, and that nothing keeps requests
// from it.
func (m *Model) Ready() bool { return m.ready.Load() > 0 && m.fault() == nil }

// awaited says that the model is ready, or that its instances were lost a moment ago and
// come back with their worker, for which its requests wait.
func (m *Model) awaited() bool {
	lost := m.lost.Load()
	return m.fault() == nil && (m.ready.Load() > 0 || lost != 0 && infer.Now()-lost < int64(m.workerWait))
}

// WorkerWait is how long requests wait while no instance is in service.
func (m *Model) WorkerWait() time.Duration { return m.workerWait }

// broken says that the version's scheduler met a panic and could not begin anew.
func (m *Model) broken() bool {
	err := m.fault()
	return err != nil && infer.CodeOf(err) != infer.Unavailable
}

// fault says why the version's scheduler can't serve: it is broken, or no instance has been in service
// for the time of Config.WorkerWait. nil: it can. It takes no lock.
func (m *Model) fault() error {
	if m.scheduler == nil {
		return nil
	}
	return m.scheduler.Fault()
}

// Instances are how many instances there are, and how many of them are in service.
func (m *Model) Instances() (all, up int) { return len(m.up), int(m.ready.Load()) }

// Stats are the version's statistics, nil where none are kept. NewScheduler may use
// them.
func (m *Model) Stats() Stats { return m.stats }

// Memory is what the version holds on devices, as its worker said when it was loaded.
func (m *Model) Memory() []*worker.MemoryUsage {
	if m.loaded == nil {
		return nil
	}
	return m.loaded.Memory()
}

// Do queues a validated request and answers it through send, on this goroutine.
// Errors as schedule.Scheduler.Do.
func (m *Model) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	return m.scheduler.Do(ctx, req, send)
}

// Start is schedule.Starter's.
func (m *Model) Start(ctx context.Context, req *infer.Request, to infer.Sink) bool {
	return m.scheduler.Start(ctx, req, to)
}

// Done records a request that has ended.
func (m *Model) Done(req *infer.Request, err error) {
	if m.stats != nil {
		m.stats.Done(req, err)
	}
}

// Pending counts the requests that wait for an instance.
func (m *Model) Pending() int { return m.scheduler.Pending() }

// Decoupled says that one request may have any number of responses.
func (m *Model) Decoupled() bool { return m.decoupled }

// Batched says that the first dimension of every tensor is the batch.
func (m *Model) Batched() bool { return m.maxBatch > 0 }

// Labels are an output's class labels, or nil. They are read-only.
func (m *Model) Labels(output string) []string { return m.labels[output] }

// Platform is the config's platform, or the backend where there is none.
func (m *Model) Platform() string {
	if m.Config.Platform != "" {
		return m.Config.Platform
	}
	return m.Config.Backend
}

// metadata describes the version; versions are all that are ready.
// Source: message ModelMetadataResponse, proto/inference/grpc_service.proto.
func (m *Model) metadata(versions []string) *inference.ModelMetadataResponse {
	md := &inference.ModelMetadataResponse{Name: m.Name, Versions: versions, Platform: m.Platform()}
	for i := range m.inputs {
		md.Inputs = append(md.Inputs, m.describe(&m.inputs[i]))
	}
	for i := range m.outputs {
		md.Outputs = append(md.Outputs, m.describe(&m.outputs[i]))
	}
	return md
}

func (m *Model) describe(t *tensor) *inference.ModelMetadataResponse_TensorMetadata {
	return &inference.ModelMetadataResponse_TensorMetadata{Name: t.name, Datatype: t.datatype.String(), Shape: m.fullDims(t)}
}

// fullDims are dims as clients see them: with -1 for the batch in front.
func (m *Model) fullDims(t *tensor) []int64 {
	var dims []int64
	if m.maxBatch > 0 && !t.shape {
		dims = append(dims, -1)
	}
	return append(dims, t.dims...)
}
