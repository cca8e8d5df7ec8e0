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
// those that were unloaded on purpose.
// Source: InferenceServer::IsReady of the original; that models which could not even be
// read count, too, is ours.
func (r *Repository) Ready() bool {
	if !r.cfg.StrictReadiness {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.fault != "" || len(e.versions) == 0 {
			return false
		}
		for _, v := range e.versions {
			unloaded := v.state == Unavailable && v.reason == reasonUnloaded
			if !unloaded && (v.state != Ready || !v.model.Ready()) {
				return false
			}
		}
	}
	return true
}

// ModelReady says whether a version has an instance in service. Errors as Acquire,
// since the original's front ends take an unknown model for one that is not ready.
func (r *Repository) ModelReady(name, version string) (bool, error) {
	m, err := r.lookup(name, version)
	if err != nil {
		return false, err
	}
	return m.Ready(), nil
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
	models := r.view.Load().models
	add := func(m *Model) {
		if m.stats != nil {
			resp.ModelStats = append(resp.ModelStats, m.stats.Snapshot())
		}
	}
	if name == "" {
		for _, name := range slices.Sorted(maps.Keys(models)) {
			for _, v := range models[name].versions {
				add(models[name].byVersion[v])
			}
		}
		return resp, nil
	}
	s, ok := models[name]
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

// Index lists all models by name and version with their states, or only those that are
// READY. A model without versions, since its config or folder is wrong, is UNAVAILABLE
// with the reason and no version.
func (r *Repository) Index(ready bool) *inference.RepositoryIndexResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &inference.RepositoryIndexResponse{}
	add := func(name, version string, state State, reason string) {
		if !ready || state == Ready {
			resp.Models = append(resp.Models, &inference.RepositoryIndexResponse_ModelIndex{
				Name: name, Version: version, State: state.String(), Reason: reason})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[name]
		if len(e.versions) == 0 {
			state := Loading
			if e.fault != "" {
				state = Unavailable
			}
			add(name, "", state, e.fault)
		}
		for _, n := range slices.Sorted(maps.Keys(e.versions)) {
			v := e.versions[n]
			add(name, strconv.FormatInt(n, 10), v.state, v.reason)
		}
	}
	return resp
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
