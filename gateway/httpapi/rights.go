package httpapi

import (
	"net/http"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// changes says that a call on the route changes something, as far as its method tells.
func (r route) changes(method string) bool {
	return method == http.MethodPost && r.kind != routeIndex && r.kind != routeInfer && r.kind != routeGenerate && r.kind != routeGenerateStream
}

// Describe fills in what a call's method and path say of it: action, change, model and
// version, as Serve would. False: there is no such route. It is for who decides on calls
// without carrying them.
func Describe(method, path string, env *infer.Envelope) bool {
	rt, ok := parsePath(path)
	if !ok || !rt.allows(method) {
		return false
	}
	env.Protocol, env.Method, env.Path = "http", method, path
	rt.describe(method, env)
	return true
}

func (r route) describe(method string, env *infer.Envelope) {
	env.Action, env.Change, env.Model, env.Version = routes[r.kind].action, r.changes(method), r.model, r.version
}

// statistics are those of the models that the call may see.
func (a *API) statistics(env *infer.Envelope, m *inference.ModelStatisticsResponse) *inference.ModelStatisticsResponse {
	out := &inference.ModelStatisticsResponse{}
	for _, s := range m.ModelStats {
		if a.pipeline.Visible(env, s.Name) {
			out.ModelStats = append(out.ModelStats, s)
		}
	}
	return out
}

// models are those of an index that the call may see.
func (a *API) models(env *infer.Envelope, m *inference.RepositoryIndexResponse) *inference.RepositoryIndexResponse {
	out := &inference.RepositoryIndexResponse{}
	for _, s := range m.Models {
		if a.pipeline.Visible(env, s.Name) {
			out.Models = append(out.Models, s)
		}
	}
	return out
}
