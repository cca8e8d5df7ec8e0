package python

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// A config is completed by the process that is then the first instance.
func TestComplete(t *testing.T) {
	p := open(t)
	defer p.Close()
	spec := specOf(t, "complete", func(c *modelconfig.ModelConfig) { c.Input, c.Output, c.MaxBatchSize = nil, nil, 0 })
	d, err := p.Describe(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	patch := d.Patch
	if len(patch.GetInput()) != 1 || len(patch.GetOutput()) != 1 || patch.GetMaxBatchSize() != 4 ||
		patch.GetDynamicBatching() == nil || patch.Decoupled != nil {
		t.Fatalf("the patch is %v", patch)
	}
	spec.Config.Input, spec.Config.Output, spec.Config.MaxBatchSize = patch.Input, patch.Output, 4
	m, err := p.Load(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []byte{1, 0} {
		inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "complete_" + string(rune('0'+i))})
		if err != nil {
			t.Fatal(err)
		}
		b := backendtest.NewBatch(backendtest.Request{Rows: 1, Inputs: []infer.Tensor{floats("IN", true, 1)}})
		b.Run(inst)
		if a := b.Answers()[0]; a.Err != nil || a.Responses[0].Outputs[0].Data[0] != want {
			t.Errorf("instance %d: %+v, want %d: whether its process has completed the config", i, a, want)
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCompleteNothing(t *testing.T) {
	p := open(t)
	defer p.Close()
	if _, err := p.Describe(t.Context(), specOf(t, "identity", nil)); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("a model without the hook: %v, want Unsupported", err)
	}
	if n := len(p.described.waiting); n > 0 {
		t.Errorf("%d processes wait", n)
	}
	_, err := p.Describe(t.Context(), specOf(t, "complete", parameter("FAIL", "yes")))
	if err == nil || !strings.HasPrefix(err.Error(), "ValueError: no config\n\nAt:\n  1/model.py(") {
		t.Errorf("a hook that fails: %v", err)
	}
}
