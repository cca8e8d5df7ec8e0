package repository

import (
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Need is a model that an ensemble's steps run.
type Need struct {
	Name string
	// Namespace is the repository that the step names; "": the ensemble's own first.
	Namespace string
	// Version is the one that the step names; -1, and every other negative number: the
	// highest that is ready.
	Version int64
}

// Needs lists the models that an ensemble's config needs, each pair of model and version
// once, in the order of the steps; none for other models. It is pure.
// Source: message ModelEnsembling.Step, proto/modelconfig/model_config.proto.
func Needs(cfg *configpb.ModelConfig) []Need {
	var all []Need
	for _, s := range cfg.GetEnsembleScheduling().GetStep() {
		n := Need{Name: s.ModelName, Namespace: s.ModelNamespace, Version: max(s.ModelVersion, -1)}
		if n.Name != "" && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// Fit is the shape in which an ensemble gives a tensor to an input: see schedule.Pinned.
func (m *Model) Fit(input string, batched bool, shape []int64) []int64 {
	at, ok := m.inputAt[input]
	if !ok {
		return shape
	}
	return schedule.Fit(m.inputs[at].dims, m.maxBatch > 0, batched, shape)
}
