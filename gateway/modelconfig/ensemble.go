package modelconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// CheckEnsemble compares an ensemble's config, which passed Validate, with the completed
// configs of the models that its steps run: tensors that are mapped, their datatypes and
// shapes, batch sizes, and what decoupled models answer. step gives a step's config, nil
// where it is not known; such a step is left out. decoupled says that the ensemble may
// answer a request any number of times, since a step's model may. The error is
// InvalidArg with Faults, in the original's words.
// Source: ValidateEnsembleConfig of the original's ensemble_utils.cc.
func CheckEnsemble(cfg *modelconfig.ModelConfig, step func(*modelconfig.ModelEnsembling_Step) *modelconfig.ModelConfig) (decoupled bool, err error) {
	c := &ensembleCheck{cfg: cfg, tensors: map[string]*ensembleTensor{}}
	for _, in := range cfg.Input {
		c.tensors[in.Name] = newEnsembleTensor(cfg, in.DataType, backendDims(in.Dims, in.Reshape))
	}
	for _, out := range cfg.Output {
		if _, ok := c.tensors[out.Name]; !ok {
			c.tensors[out.Name] = newEnsembleTensor(cfg, out.DataType, backendDims(out.Dims, out.Reshape))
		}
	}
	many := make([]bool, len(cfg.GetEnsembleScheduling().GetStep()))
	for i, s := range cfg.GetEnsembleScheduling().GetStep() {
		m := step(s)
		if m == nil {
			continue
		}
		many[i] = m.GetModelTransactionPolicy().GetDecoupled()
		path := fmt.Sprintf("ensemble_scheduling.step[%d]", i)
		if m.MaxBatchSize != 0 && m.MaxBatchSize < cfg.MaxBatchSize {
			c.addf(path, "ensemble %s allows maximum batch size %d, but it contains model %s which only allows maximum batch size to be %d",
				cfg.Name, cfg.MaxBatchSize, s.ModelName, m.MaxBatchSize)
		}
		c.inputs(path+".input_map", s, m)
		c.outputs(path+".output_map", s, m)
	}
	decoupled = c.labels(many)
	return decoupled, c.err()
}

type ensembleCheck struct {
	cfg     *modelconfig.ModelConfig
	tensors map[string]*ensembleTensor
	Faults
}

// ensembleTensor is what is known of a tensor, and from whom.
type ensembleTensor struct {
	model string
	dt    modelconfig.DataType
	dims  []int64
	full  []int64 // with the batch in front
}

func newEnsembleTensor(m *modelconfig.ModelConfig, dt modelconfig.DataType, dims []int64) *ensembleTensor {
	t := &ensembleTensor{model: m.Name, dt: dt, dims: dims}
	if m.MaxBatchSize > 0 {
		t.full = append(t.full, -1)
	}
	t.full = append(t.full, dims...)
	return t
}

func backendDims(dims []int64, reshape *modelconfig.ModelTensorReshape) []int64 {
	if reshape != nil {
		return reshape.Shape
	}
	return dims
}

// fits compares what a step's model says of a tensor with what is known of it.
func (c *ensembleCheck) fits(path, name string, model *ensembleTensor) {
	t, ok := c.tensors[name]
	if !ok {
		c.tensors[name] = model
		return
	}
	switch {
	case t.dt != model.dt:
		c.addf(path, "in ensemble %s, ensemble tensor %s: inconsistent data type: %s is inferred from model %s while %s is inferred from model %s",
			c.cfg.Name, name, t.dt, t.model, model.dt, model.model)
	case !wildcardEqual(t.dims, model.dims) && !wildcardEqual(t.full, model.full):
		c.addf(path, "in ensemble %s, ensemble tensor %s: inconsistent shape: %s is inferred from model %s while %s is inferred from model %s",
			c.cfg.Name, name, listText(t.full), t.model, listText(model.full), model.model)
	}
}

// wildcardEqual says that shapes are equal but for dimensions that are -1 in one.
func wildcardEqual(a, b []int64) bool {
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x == -1 || y == -1 })
}

func listText(dims []int64) string { return strings.ReplaceAll(fmt.Sprint(dims), " ", ",") }

func (c *ensembleCheck) inputs(path string, s *modelconfig.ModelEnsembling_Step, m *modelconfig.ModelConfig) {
	for _, name := range slices.Sorted(maps.Keys(s.InputMap)) {
		if !slices.ContainsFunc(m.Input, func(in *modelconfig.ModelInput) bool { return in.Name == name }) {
			c.addf(path, "in ensemble %s, ensemble tensor %s is mapping to non-existing input %s in model %s", c.cfg.Name, s.InputMap[name],
				name, s.ModelName)
		}
	}
	for _, in := range m.Input {
		tensor, mapped := s.InputMap[in.Name]
		switch {
		case mapped:
			c.fits(path, tensor, newEnsembleTensor(m, in.DataType, in.Dims))
		case !in.Optional:
			c.addf(path, "in ensemble %s, input %s in model %s is not mapped to any ensemble tensors", c.cfg.Name, in.Name, s.ModelName)
		}
	}
}

func (c *ensembleCheck) outputs(path string, s *modelconfig.ModelEnsembling_Step, m *modelconfig.ModelConfig) {
	for _, name := range slices.Sorted(maps.Keys(s.OutputMap)) {
		tensor := s.OutputMap[name]
		at := slices.IndexFunc(m.Output, func(out *modelconfig.ModelOutput) bool { return out.Name == name })
		if at < 0 {
			c.addf(path, "in ensemble %s, ensemble tensor %s is mapped from non-existing output %s in model %s", c.cfg.Name, tensor, name,
				s.ModelName)
			continue
		}
		c.fits(path, tensor, newEnsembleTensor(m, m.Output[at].DataType, m.Output[at].Dims))
	}
}

// labels follows the answers of decoupled models: what a step reads, and what the
// ensemble answers with, must come from the same ones. It says whether there are any.
func (c *ensembleCheck) labels(many []bool) bool {
	steps := c.cfg.GetEnsembleScheduling().GetStep()
	labels := map[string]int{}
	for _, in := range c.cfg.Input {
		labels[in.Name] = 0
	}
	next, done := 0, make([]bool, len(steps))
	for range steps {
		for i, s := range steps {
			if done[i] || !c.known(labels, s) {
				continue
			}
			done[i] = true
			label, same := 0, true
			for k, name := range slices.Sorted(maps.Keys(s.InputMap)) {
				l := labels[s.InputMap[name]]
				same = same && (k == 0 || l == label)
				label = l
			}
			if !same {
				c.mixed(fmt.Sprintf("ensemble_scheduling.step[%d]", i), s.ModelName)
			}
			if many[i] {
				next++
				label = next
			}
			for _, tensor := range s.OutputMap {
				labels[tensor] = label
			}
		}
	}
	for i, out := range c.cfg.Output {
		if labels[out.Name] != labels[c.cfg.Output[0].Name] {
			c.mixed(fmt.Sprintf("output[%d]", i), c.cfg.Name)
			break
		}
	}
	return next != 0
}

func (c *ensembleCheck) known(labels map[string]int, s *modelconfig.ModelEnsembling_Step) bool {
	for _, tensor := range s.InputMap {
		if _, ok := labels[tensor]; !ok {
			return false
		}
	}
	return true
}

func (c *ensembleCheck) mixed(path, model string) {
	c.addf(path, "in ensemble %s, step of model '%s' receives inputs originated from different decoupled models", c.cfg.Name, model)
}

// Circular says that an ensemble runs itself: key names it, needs are the keys of the
// models that a model runs, none for those that are no ensembles. Only what can be
// reached from key is looked at.
// Source: DependencyGraph::CircularDependencyCheck of the original.
func Circular[K comparable](start K, needs func(K) []K) error {
	seen := map[K]bool{}
	var last *K
	var visit func(k K) bool
	visit = func(k K) bool {
		if seen[k] {
			return false
		}
		seen[k] = true
		for _, n := range needs(k) {
			if n == start {
				last = &k
				return true
			}
			if visit(n) {
				return true
			}
		}
		return false
	}
	if !visit(start) {
		return nil
	}
	return infer.Errorf(infer.InvalidArg, "circular dependency between ensembles: %v -> ... -> %v -> %v", start, *last, start)
}
