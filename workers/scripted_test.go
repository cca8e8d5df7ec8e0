package workers_test

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
)

// scripted is a backend whose instances do what the test says.
type scripted struct {
	execute atomic.Value // func(b backend.Batch) error
	failAt  int          // the instance that can't be made, from 1; 0: none
	open    int          // open requests that it declares
	info    backend.Info
	making  func()              // called when an instance is made; nil: nothing is
	patch   *worker.ConfigPatch // of Describe

	mu      sync.Mutex
	made    []*scriptedInstance // guarded by mu
	closed  int                 // guarded by mu: models
	loads   int                 // guarded by mu
	entered int                 // guarded by mu: executions
	specs   []backend.Spec      // guarded by mu: of Describe and Load
}

type scriptedInstance struct {
	of     *scripted
	closed bool
}

func (s *scripted) factory(map[string]string) (backend.Backend, error) { return s, nil }
func (s *scripted) Info() backend.Info {
	info := s.info
	info.OpenRequests = max(info.OpenRequests, s.open)
	return info
}
func (s *scripted) Close() error { return nil }

func (s *scripted) Describe(_ context.Context, spec backend.Spec) (*backend.Description, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = append(s.specs, spec)
	return &backend.Description{Inputs: []backend.TensorInfo{{Name: "x", Datatype: infer.FP32, Shape: []int64{-1, 2}}}, Patch: s.patch}, nil
}

func (s *scripted) Load(_ context.Context, spec backend.Spec) (backend.Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = append(s.specs, spec)
	s.loads++
	return scriptedModel{s}, nil
}

type scriptedModel struct{ *scripted }

func (m scriptedModel) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	if m.making != nil {
		m.making()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failAt > 0 && len(m.made)+1 == m.failAt {
		return nil, infer.Errorf(infer.Unavailable, "no room for instance %d", m.failAt)
	}
	inst := &scriptedInstance{of: m.scripted}
	m.made = append(m.made, inst)
	return inst, nil
}

func (m scriptedModel) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

// Fault fits backend.Instance: it can always execute.
func (*scriptedInstance) Fault() error { return nil }

func (i *scriptedInstance) Execute(b backend.Batch) error {
	i.of.mu.Lock()
	i.of.entered++
	i.of.mu.Unlock()
	return i.of.execute.Load().(func(backend.Batch) error)(b)
}

func (i *scriptedInstance) Close() error {
	i.closed = true
	return nil
}

func scriptedDeps(s *scripted) workers.Deps {
	return workers.Deps{Backends: map[string]backend.Factory{"identity": s.factory}}
}

func (s *scripted) closedModels() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// echo answers with the first input.
var echo = func(b backend.Batch) error {
	t := b.Inputs()[0]
	t.Name = "OUTPUT0"
	return b.Outputs([]infer.Tensor{t})
}
