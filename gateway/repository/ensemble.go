package repository

import (
	"slices"

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
