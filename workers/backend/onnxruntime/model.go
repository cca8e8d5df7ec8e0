//go:build onnxruntime && cgo

package onnxruntime

import (
	"context"
	"errors"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// model is one loaded version.
type model struct {
	runtime  *runtime
	spec     backend.Spec
	path     string
	settings settings

	mu    sync.Mutex
	first *ort.Session // from Load; shared, or the first CPU instance's; nil once taken
	plans *plans       // set with the first session
}

// onlyGPU says that all instance groups are for GPUs.
func onlyGPU(cfg *modelconfig.ModelConfig) bool {
	for _, g := range cfg.GetInstanceGroup() {
		if g.GetKind() != modelconfig.ModelInstanceGroup_KIND_GPU {
			return false
		}
	}
	return len(cfg.GetInstanceGroup()) > 0
}

// open makes a session and checks it; the first one fixes the plans.
func (m *model) open(ctx context.Context, cfg ort.SessionConfig) (*ort.Session, error) {
	s, err := m.runtime.lib.NewSession(ctx, m.path, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil, infer.Errorf(infer.Cancelled, "loading of model '%s' was cancelled", m.spec.Name)
		}
		return nil, m.runtime.cleaner(m.spec).load(m.spec.Name, err)
	}
	if m.plans == nil {
		if err := validate(m.spec, s); err != nil {
			s.Close()
			return nil, err
		}
		m.plans = newPlans(m.spec.Config, s)
	}
	return s, nil
}

// NewInstance makes an instance, with a session of its own where the package comment
// says so.
func (m *model) NewInstance(ctx context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, own, err := m.session(ctx, spec)
	if err != nil {
		return nil, err
	}
	call, err := s.NewCall(m.settings.run)
	if err != nil {
		if own {
			s.Close()
		}
		return nil, m.runtime.cleaner(m.spec).load(m.spec.Name, err)
	}
	inst := newInstance(m, s, call)
	if own {
		inst.own = s
	}
	m.runtime.watch.Add(&inst.running)
	return inst, nil
}

// session gives the session of an instance, and whether it belongs to the instance.
// m.mu is held.
func (m *model) session(ctx context.Context, spec backend.InstanceSpec) (*ort.Session, bool, error) {
	if spec.GPU {
		cfg, err := m.gpuConfig(spec.Device)
		if err != nil {
			return nil, false, err
		}
		s, err := m.open(ctx, cfg)
		return s, true, err
	}
	if m.first == nil {
		s, err := m.open(ctx, m.settings.session)
		if err != nil || !m.settings.share {
			return s, true, err
		}
		m.first = s
	}
	s := m.first
	if !m.settings.share {
		m.first = nil
	}
	return s, !m.settings.share, nil
}

func (m *model) gpuConfig(device int) (ort.SessionConfig, error) {
	cfg := m.settings.session
	if !m.runtime.hasLibrary(cudaLibrary) {
		return cfg, m.missing("instances on a GPU need", cudaLibrary)
	}
	cfg.CUDA = provider(m.settings.gpu.cuda, device)
	if m.settings.gpu.tensorrt != nil {
		if !m.runtime.hasLibrary(tensorrtLibrary) {
			return cfg, m.missing("the execution accelerator 'tensorrt' needs", tensorrtLibrary)
		}
		cfg.TensorRT = provider(m.settings.gpu.tensorrt, device)
	}
	return cfg, nil
}

func (m *model) missing(who, library string) error {
	return infer.Errorf(infer.Unavailable, "unable to load model '%s': %s '%s' beside ONNX Runtime's library, and it is not there;"+
		" install ONNX Runtime's build for GPUs (package onnxruntime-gpu), or use instance_group { kind: KIND_CPU }",
		m.spec.Name, who, library)
}

// Close frees the sessions that no instance owned.
func (m *model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first != nil {
		m.first.Close()
		m.first = nil
	}
	return nil
}

// Close ends the instance's part of the model.
func (i *instance) Close() error {
	if i.call == nil {
		return errors.New("the instance is closed already")
	}
	i.model.runtime.watch.Remove(&i.running)
	i.call.Close()
	i.call = nil
	if i.own != nil {
		i.own.Close()
		i.own = nil
	}
	return nil
}
