package repository

import (
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Ready says whether the server is: with StrictReadiness every model has to be, but
// those that were unloaded on purpose. A version that is loaded beside one that serves
// takes nothing away.
// Source: InferenceServer::IsReady of Triton; that models which could not even be read
// count, too, and that a version beside another does not while it is loaded, is ours.
func (r *Repository) Ready() bool {
	if !r.cfg.StrictReadiness {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, e := range r.entries {
		if e.wanted && !r.entryReadyLocked(k, e) {
			return false
		}
	}
	return true
}

// entryReadyLocked is Ready of one model; r.mu is held.
func (r *Repository) entryReadyLocked(k key, e *entry) bool {
	if e.fault != "" || len(e.versions) == 0 {
		return false
	}
	loading, serves := false, false
	for _, v := range e.versions {
		switch {
		case v.state == Unloading || v.state == Unavailable && v.reason == reasonUnloaded:
		case v.state == Loading:
			loading = true
		case v.state != Ready || !r.serves(k.namespace, v.model, 0, (*Model).Ready):
			return false
		default:
			serves = true
		}
	}
	return serves || !loading
}

// Degraded says that requests are worth sending here, although Ready may say no: some
// model is ready, or lost its last instance less than Config.WorkerWait ago, so that its requests
// wait for the worker that is started again. Others may be loaded meanwhile, or have failed.
func (r *Repository) Degraded() bool {
	if !r.cfg.StrictReadiness {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, e := range r.entries {
		for _, v := range e.versions {
			if v.state == Ready && r.serves(k.namespace, v.model, 0, (*Model).awaited) {
				return true
			}
		}
	}
	return false
}

// Known says that there is a model of that name, in whatever state.
func (r *Repository) Known(name string) bool { return r.view.Load().models[name] != nil }

// ModelReady says whether a version has an instance in service. Errors as Acquire,
// since the original's front ends take an unknown model for one that is not ready.
func (r *Repository) ModelReady(name, version string) (bool, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return false, err
	}
	return r.serves(m.namespace, m, 0, (*Model).Ready), nil
}

// deepestStep bounds ensembles of ensembles.
const deepestStep = 32

// serves says that ok is true of a version, and of all models that an ensemble needs.
func (r *Repository) serves(own string, m *Model, depth int, ok func(*Model) bool) bool {
	if !ok(m) || depth > deepestStep {
		return false
	}
	for _, n := range m.needs {
		step := r.view.Load().step(own, n)
		if step == nil || !r.serves(step.namespace, step, depth+1, ok) {
			return false
		}
	}
	return true
}

// Metadata describes a model; errors as Acquire.
func (r *Repository) Metadata(name, version string) (*inference.ModelMetadataResponse, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return nil, err
	}
	var versions []string
	if s, ok := r.view.Load().models[name]; ok {
		versions = slices.Clone(s.versions)
	}
	return m.metadata(versions), nil
}

// Config is a version's completed config; it is read-only. Errors as Acquire.
func (r *Repository) Config(name, version string) (*configpb.ModelConfig, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return nil, err
	}
	return m.Config, nil
}

// RawInput is the one input of a model, shaped so that a raw request of size bytes
// fills it. A BYTES input has one element, whose 4-byte length the caller puts before
// the body. Errors as Acquire, and InvalidArg where the model or the size don't fit.
func (r *Repository) RawInput(name, version string, size int64) (infer.Tensor, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return infer.Tensor{}, err
	}
	return m.raw(size)
}

// Statistics are those of one version, of all ready versions of a model ("" as
// version), or of all models ("" as name), by name and version.
// Source: ModelStatistics of the original; its code for an unknown model is InvalidArg.
func (r *Repository) Statistics(name, version string) (*inference.ModelStatisticsResponse, error) {
	resp := &inference.ModelStatisticsResponse{}
	view := r.view.Load()
	models := view.models
	add := func(m *Model) {
		if m.stats != nil {
			resp.ModelStats = append(resp.ModelStats, m.snapshot())
		}
	}
	if name == "" {
		for _, s := range view.sorted() {
			for _, v := range s.versions {
				add(s.byVersion[v])
			}
		}
		return resp, nil
	}
	s, ok := models[name]
	if ok && s.same > 1 {
		_, err := r.lookup(name, version)
		return nil, err
	}
	if !ok || len(s.versions) == 0 {
		return nil, infer.Errorf(infer.InvalidArg, "requested model '%s' is not available", name)
	}
	if version == "" {
		for _, v := range s.versions {
			add(s.byVersion[v])
		}
		return resp, nil
	}
	n, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	m, ok := s.byVersion[strconv.FormatInt(n, 10)]
	if !ok {
		return nil, infer.Errorf(infer.InvalidArg, "requested model version is not available for model '%s'", name)
	}
	add(m)
	return resp, nil
}

// sorted are all models by name.
func (v *view) sorted() []*served {
	var all []*served
	for _, name := range slices.Sorted(maps.Keys(v.models)) {
		if v.models[name].same < 2 {
			all = append(all, v.models[name])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(v.spaces), compareKeys) {
		if v.models[k.name].same > 1 {
			all = append(all, v.spaces[k])
		}
	}
	return all
}

// Index lists all models by name and version with their states, or only those that are
// READY: those of the repositories as they are now, and those that are loaded. One
// without versions, since its config or folder is wrong, is UNAVAILABLE with the reason
// and no version; one that nobody loaded has no state.
func (r *Repository) Index(ready bool) *inference.RepositoryIndexResponse {
	var idle []Folder
	if r.cfg.Mode == Explicit && !ready {
		idle = r.listed()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &inference.RepositoryIndexResponse{}
	add := func(name, version, state, reason string) {
		if !ready || state == Ready.String() {
			resp.Models = append(resp.Models, &inference.RepositoryIndexResponse_ModelIndex{Name: name, Version: version, State: state, Reason: reason})
		}
	}
	keys := slices.Collect(maps.Keys(r.entries))
	for _, f := range idle {
		if r.entries[f.key()] == nil {
			keys = append(keys, f.key())
		}
	}
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		e := r.entries[k]
		switch {
		case e == nil || len(e.versions) == 0 && !e.wanted && e.fault == "":
			add(k.name, "", "", "")
			continue
		case len(e.versions) == 0 && e.fault != "":
			add(k.name, "", Unavailable.String(), e.fault)
		case len(e.versions) == 0:
			add(k.name, "", Loading.String(), "")
		}
		for _, n := range slices.Sorted(maps.Keys(e.versions)) {
			state, why := r.shown(k.namespace, e.versions[n])
			add(k.name, strconv.FormatInt(n, 10), state.String(), why)
		}
	}
	return resp
}

// shown is what the index says of a version: one whose scheduler, or that of a model which it needs, can't
// serve is UNAVAILABLE, though it stays loaded until it is replaced or can again.
func (r *Repository) shown(namespace string, v *version) (State, string) {
	if v.state == Ready {
		if err := r.faultOf(namespace, v.model, 0); err != nil {
			return Unavailable, reason(err)
		}
	}
	return v.state, v.reason
}

// faultOf is the fault of a version, or of one that it needs; nil: there is none.
func (r *Repository) faultOf(namespace string, m *Model, depth int) error {
	if err := m.fault(); err != nil || depth > deepestStep {
		return err
	}
	for _, n := range m.needs {
		if step := r.view.Load().step(namespace, n); step != nil {
			if err := r.faultOf(step.namespace, step, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// listed are the folders of the repositories that are on this machine; what can't be
// read is left out.
func (r *Repository) listed() []Folder {
	folders, _, _ := r.joinedFolders("") // what can't be read is told when it is loaded
	for _, path := range r.cfg.Paths {
		if r.deps.Stores != nil && r.deps.Stores.Remote(path) {
			continue
		}
		found, _ := Find([]string{path}) // what can't be read is told when it is loaded
		for _, f := range found {
			if r.cfg.Namespacing {
				f.Namespace = path
			}
			folders = merge(folders, f)
		}
	}
	return folders
}

// Status is one row of the start-up table.
type Status struct {
	Name, Version string // Version is "-" where there is none
	State         string // "READY", or "UNAVAILABLE: " and the reason
}

// Table lists the models for the start-up table.
func (r *Repository) Table() []Status {
	var rows []Status
	for _, m := range r.Index(false).Models {
		row := Status{m.Name, m.Version, m.State}
		if row.Version == "" {
			row.Version = "-"
		}
		if m.Reason != "" {
			row.State += ": " + m.Reason
		}
		rows = append(rows, row)
	}
	return rows
}
