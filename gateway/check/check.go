// Package check says of model repositories what would be served and what is wrong,
// without loading anything: what was completed and from what, which versions would be
// loaded where, every fault with its place in the config, and near misses such as a
// config.pbxt or a version folder called v1. `sluice check` prints its Report.
//
// It uses the repository's own reading, so both say the same. It has no state.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/repository"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Report is what a check found.
type Report struct {
	Repositories []string // faults of repositories themselves
	Models       []Model  // by name
	Opened       bool     // workers were asked, so model files were opened
}

// Model is what was found out about one model.
type Model struct {
	Name      string
	Dir       string
	Namespace string              // its repository, where namespaces are on
	Completed []string            // what the config leaves out, and from where it was filled in
	Loads     []string            // versions that would be loaded, and where
	Remarks   []string            // what their backend says of them
	Explained []Note              // what the config of the versions that would be loaded does
	Ignored   []string            // version folders that would not be loaded, and why
	Faults    []modelconfig.Fault // why it would not be served, or not whole
	Hints     []string            // near misses: what was probably meant
	duplicate bool                // it is in several repositories
}

// OK says that every model would be served.
func (r *Report) OK() bool {
	return len(r.Repositories) == 0 && !slices.ContainsFunc(r.Models, func(m Model) bool { return len(m.Faults) > 0 })
}

// Wrong counts the models that have faults.
func (r *Report) Wrong() int {
	n := 0
	for _, m := range r.Models {
		if len(m.Faults) > 0 {
			n++
		}
	}
	return n
}

// Check reads the repositories of cfg. With workers, model files are opened and
// compared with the configs; w may be nil. When ctx ends, the models that were not
// reached have that as their fault.
func (s *Server) Check(ctx context.Context, cfg repository.Config, w repository.Workers) *Report {
	r := &Report{Opened: w != nil}
	folders, err := repository.Folders(&cfg)
	if err != nil {
		r.Repositories = append(r.Repositories, strings.Split(err.Error(), "\n")...)
	}
	for _, path := range cfg.Paths {
		if hint := nested(cfg.Known, path); hint != "" {
			r.Repositories = append(r.Repositories, hint)
		}
	}
	if len(folders) == 0 && len(r.Repositories) == 0 {
		r.Repositories = append(r.Repositories, "no model folders in "+strings.Join(cfg.Paths, ", "))
	}
	all := &found{folders: folders, done: make([]*configpb.ModelConfig, len(folders))}
	limiter := ratelimit.New(s.Resources)
	for i, f := range folders {
		m := Model{Name: f.Name, Dir: f.Dir, Namespace: f.Namespace}
		if err := ctx.Err(); err != nil {
			m.fault(fmt.Errorf("not checked: %w", err))
		} else {
			if done := m.check(ctx, f, &cfg, w); done != nil {
				if s.Agents != nil {
					m.fault(s.Agents(ctx, f.Name, f.Dir, done))
				}
				m.fault(s.timeToLive(done))
				if s.RateLimit {
					// as at a load: with what the models before it have taken for themselves
					_, err := limiter.Register(ratelimit.Instances(done), nil) // nobody wants anything here
					m.fault(err)
				}
				m.Explained = Explain(done, *s)
				all.done[i] = done
			}
		}
		r.Models = append(r.Models, m)
	}
	r.ensembles(all, &cfg, w)
	return r
}

// check looks at one model. It returns its completed config, nil where it has faults in
// every version.
func (m *Model) check(ctx context.Context, f repository.Folder, cfg *repository.Config, w repository.Workers) (done *configpb.ModelConfig) {
	plan, err := repository.Open(f, cfg, w)
	m.Completed = plan.Notes
	m.duplicate = len(f.Also) > 0
	for _, dir := range f.Also {
		m.Hints = append(m.Hints, fmt.Sprintf("it is in %s and in %s: remove or rename one", f.Dir, dir))
	}
	m.fault(err)
	m.nearMisses(plan)
	if err != nil {
		return nil
	}
	if plan.Source == nil {
		m.Completed = append([]string{"the whole config: there is no " + repository.ConfigFile}, m.Completed...)
	}
	for _, n := range plan.Absent {
		m.fault(plan.Source.Locate(wrap("version_policy", fmt.Sprintf("version %d is specified for model '%s', but the version directory is not present", n, f.Name))))
	}
	for _, n := range plan.Existing {
		if !slices.Contains(plan.Versions, n) {
			m.Ignored = append(m.Ignored, fmt.Sprintf("version %d: the version policy leaves it out", n))
		}
	}
	for _, n := range plan.Versions {
		v, err := plan.Version(ctx, n, true)
		if err != nil {
			if len(plan.Versions) > 1 && modelconfig.FaultsOf(err) == nil {
				err = fmt.Errorf("version %d: %w", n, err)
			}
			m.fault(err)
			continue
		}
		for _, note := range v.Notes {
			if !slices.Contains(m.Completed, note) {
				m.Completed = append(m.Completed, note)
			}
		}
		m.Loads = append(m.Loads, where(v, w))
		m.Remarks = append(m.Remarks, v.Remarks...)
		for _, text := range v.Findings {
			m.fault(errors.New(text))
		}
		done = v.Spec.Config
	}
	return done
}

// timeToLive is the error that a load would end with for the parameter's sake.
func (s *Server) timeToLive(cfg *configpb.ModelConfig) error {
	ttl, ok := cfg.GetParameters()[repository.CacheTTLParameter]
	if !ok || !s.Cache || !cfg.GetResponseCache().GetEnable() {
		return nil
	}
	if _, err := cache.ParseTTL(ttl.GetStringValue()); err != nil {
		return wrap("parameters", fmt.Sprintf("parameter '%s' for %s: %v", repository.CacheTTLParameter, cfg.GetName(), err))
	}
	return nil
}

// wrap is a fault as an error.
func wrap(path, msg string) error { return modelconfig.Faults{{Path: path, Msg: msg}} }

// fault adds an error, fault by fault where it has more than one.
func (m *Model) fault(err error) {
	if err == nil {
		return
	}
	faults := modelconfig.FaultsOf(err)
	if faults == nil {
		faults = modelconfig.Faults{{Msg: err.Error()}}
	}
	for _, f := range faults {
		if !slices.Contains(m.Faults, f) {
			m.Faults = append(m.Faults, f)
		}
	}
}

// where says what a version's instances are and where they go. w may be nil.
func where(v *repository.VersionPlan, w repository.Workers) string {
	if n := len(v.Spec.Config.GetEnsembleScheduling().GetStep()); n > 0 {
		return fmt.Sprintf("version %d: an ensemble of %s", v.Spec.Version, plural(n, "step"))
	}
	text := fmt.Sprintf("version %d with %s", v.Spec.Version, v.Spec.Backend)
	if w != nil {
		if b := w.Backends()[v.Spec.Backend]; b.GetEngine() != nil {
			text += " (" + strings.TrimSpace(b.GetEngine().GetName()+" "+b.GetVersion()) + ")"
		}
	}
	if len(v.Spec.Instances) == 0 {
		return text
	}
	places, count := []string{}, map[string]int{}
	for _, i := range v.Spec.Instances {
		place := "the CPU"
		if i.GPU {
			place = fmt.Sprintf("GPU %d", i.Device)
		}
		if count[place] == 0 {
			places = append(places, place)
		}
		count[place]++
	}
	for i, p := range places {
		unit := "instance"
		if count[p] > 1 {
			unit = "instances"
		}
		places[i] = fmt.Sprintf("%d %s on %s", count[p], unit, p)
	}
	return text + ": " + strings.Join(places, ", ")
}
