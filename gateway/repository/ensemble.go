package repository

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
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
		n := needOf(s)
		if n.Name != "" && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

func needOf(s *configpb.ModelEnsembling_Step) Need {
	return Need{Name: s.ModelName, Namespace: s.ModelNamespace, Version: max(s.ModelVersion, -1)}
}

// checkEnsemble compares an ensemble's config with those of its steps' models, as far as
// they serve, and says whether it may answer a request any number of times.
func (r *Repository) checkEnsemble(k key, cfg *configpb.ModelConfig) (decoupled bool, err error) {
	v := r.view.Load()
	return modelconfig.CheckEnsemble(cfg, func(s *configpb.ModelEnsembling_Step) *configpb.ModelConfig {
		if m := v.step(k.namespace, needOf(s)); m != nil {
			return m.Config
		}
		return nil
	})
}

// settleEnsemble completes a version of an ensemble with what its steps' models say: it
// is decoupled where one of them is, and an output without labels has those of the step
// that it comes from.
// Source: ValidateEnsembleConfig and ModelLifeCycle::CreateModel of the original.
func (r *Repository) settleEnsemble(v *VersionPlan) error {
	cfg := v.Spec.Config
	k := key{v.namespace, v.Spec.Name}
	decoupled, err := r.checkEnsemble(k, cfg)
	if err != nil {
		return err
	}
	cfg.ModelTransactionPolicy = &configpb.ModelTransactionPolicy{Decoupled: decoupled}
	view := r.view.Load()
	for _, out := range cfg.Output {
		if v.Labels[out.Name] != nil {
			continue
		}
		for _, s := range cfg.GetEnsembleScheduling().GetStep() {
			m := view.step(k.namespace, needOf(s))
			for name, tensor := range s.OutputMap {
				if tensor == out.Name && m != nil && m.labels[name] != nil {
					v.Labels[out.Name] = m.labels[name]
				}
			}
		}
	}
	return nil
}

// stepsFault says why an ensemble can't serve with the models that there are; nil: it
// can. The texts are the original's.
// Source: ModelRepositoryManager::CheckNode and DependencyGraph::ConnectDependencyGraph
// of the original.
func (r *Repository) stepsFault(ctx context.Context, k key, cfg *configpb.ModelConfig) error {
	if err := r.circular(ctx, k, cfg); err != nil {
		return err
	}
	needs := Needs(cfg)
	if steps := r.missing(k.namespace, needs); len(steps) > 0 {
		return r.missingFault(k, needs, steps)
	}
	_, err := r.checkEnsemble(k, cfg)
	return err
}

// inOrder sorts ensembles so that each comes after those among them that it needs. What
// can't be read, or runs itself, stays where it is: its load says why it fails.
func inOrder(ensembles []Folder) []Folder {
	sorted := make([]Folder, 0, len(ensembles))
	seen := map[key]bool{}
	var add func(f *Folder)
	add = func(f *Folder) {
		if seen[f.key()] {
			return
		}
		seen[f.key()] = true
		if cfg, _, err := f.readConfig(true); err == nil {
			for _, n := range Needs(cfg) {
				for i := range ensembles {
					if ensembles[i].Name == n.Name {
						add(&ensembles[i])
					}
				}
			}
		}
		sorted = append(sorted, *f)
	}
	for i := range ensembles {
		add(&ensembles[i])
	}
	return sorted
}

// park lets an ensemble wait for its steps' models, and with fits ends that: it is loaded
// once they fit. A call's config that can't take the place of what serves is not kept.
func (r *Repository) park(c *change, fits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryLocked(c.k)
	if !fits && !c.call.empty() && len(c.serving) > 0 {
		return
	}
	e.parked, e.waits = !fits, nil
	if !fits {
		e.waits = &source{dir: c.folder.Dir, cfg: c.plan.Config, call: c.called(), renamed: c.folder.Renamed}
	}
}

// ensembleSource is what an ensemble is made of, or what it waits with for its steps.
func (e *entry) ensembleSource() *source {
	if e.parked && e.waits != nil {
		return e.waits
	}
	return e.source
}

// missingFault tells of the first step that is known and does not serve, or of all that
// are not known.
func (r *Repository) missingFault(k key, needs []Need, steps []string) error {
	v := r.view.Load()
	for _, n := range needs {
		s := v.resolve(k.namespace, n)
		if s == nil || v.step(k.namespace, n) != nil {
			continue
		}
		depends := fmt.Sprintf("ensemble '%s' depends on '%s'", k.name, n.Name)
		if s.latest != nil {
			return infer.Errorf(infer.InvalidArg, "%s whose required version %d is not loaded.", depends, n.Version)
		}
		fault, reasons := r.whyNot(n.Name)
		switch {
		case reasons != "":
			return infer.Errorf(infer.InvalidArg, "%s which has no loaded version. Model '%s' loading failed with error: %s", depends, n.Name, reasons)
		case fault != "":
			return infer.Errorf(infer.InvalidArg, "%s which is not valid. Model '%s' failed with error: %s", depends, n.Name, fault)
		}
		return infer.Errorf(infer.InvalidArg, "%s which has no loaded version.", depends)
	}
	return infer.Errorf(infer.InvalidArg, "ensemble %s contains models that are not available or ambiguous: %s", k.name, strings.Join(steps, ", "))
}

// whyNot is why a model as a whole is not served, or why its versions are not.
func (r *Repository) whyNot(name string) (fault, versions string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, e := range r.entries {
		if k.name != name {
			continue
		}
		if e.fault != "" {
			fault = e.fault
			for _, word := range codeWords {
				if text, ok := strings.CutPrefix(fault, word+": "); ok {
					fault = text
					break
				}
			}
			return fault, ""
		}
		for _, n := range slices.Sorted(maps.Keys(e.versions)) {
			if v := e.versions[n]; v.reason != "" && v.reason != reasonUnloaded {
				versions += fmt.Sprintf("version %d is at %s state: %s;", n, v.state, v.reason)
			}
		}
	}
	return fault, versions
}

// circular says that an ensemble runs itself, through models that serve or by the
// configs of those that don't.
func (r *Repository) circular(ctx context.Context, k key, cfg *configpb.ModelConfig) error {
	v := r.view.Load()
	return modelconfig.Circular(k, func(at key) []key {
		needs := Needs(cfg)
		if at != k {
			needs = r.needsOf(ctx, v, at)
		}
		var keys []key
		for _, n := range needs {
			switch m := v.step(at.namespace, n); {
			case m != nil:
				keys = append(keys, key{m.namespace, m.Name})
			case r.cfg.Namespacing && n.Namespace != "":
				keys = append(keys, key{n.Namespace, n.Name})
			default:
				keys = append(keys, key{at.namespace, n.Name})
			}
		}
		return keys
	})
}

// needsOf are the models that another one needs. A folder that can't be read needs none:
// its own load says so.
func (r *Repository) needsOf(ctx context.Context, v *view, at key) []Need {
	if m := v.step(at.namespace, Need{Name: at.name, Namespace: at.namespace, Version: -1}); m != nil {
		return Needs(m.Config)
	}
	folders, _, err := r.find(ctx, at.name)
	if err != nil {
		return nil
	}
	for _, f := range folders {
		if f.key() != at {
			continue
		}
		if cfg, _, err := f.readConfig(true); err == nil {
			return Needs(cfg)
		}
	}
	return nil
}

// Namespace is the repository that the model lies in, "" where namespaces are off.
func (m *Model) Namespace() string { return m.namespace }

// Fit is the shape in which an ensemble gives a tensor to an input: see schedule.Pinned.
func (m *Model) Fit(input string, batched bool, shape []int64) []int64 {
	at, ok := m.inputAt[input]
	if !ok {
		return shape
	}
	return schedule.Fit(m.inputs[at].dims, m.maxBatch > 0, batched, shape)
}
