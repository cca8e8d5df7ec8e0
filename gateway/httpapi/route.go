package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

type routeKind uint8

const (
	routeNone routeKind = iota
	routeServer
	routeLive
	routeReady
	routeModel
	routeModelReady
	routeConfig
	routeStats
	routeAllStats
	routeInfer
	routeGenerate
	routeGenerateStream
	routeTrace
	routeIndex
	routePurge
	routeLoad
	routeUnload
	routeRepositoryLoad
	routeLogging
	routeMemoryStatus
	routeMemoryChange
)

// routes gives each kind its method and the action it needs the right for.
// Source: triton.md A2.
var routes = [...]struct {
	get, post bool
	action    infer.Action
}{
	routeServer:         {get: true, action: infer.ActionMetadata},
	routeLive:           {get: true, action: infer.ActionHealth},
	routeReady:          {get: true, action: infer.ActionHealth},
	routeModel:          {get: true, action: infer.ActionMetadata},
	routeModelReady:     {get: true, action: infer.ActionHealth},
	routeConfig:         {get: true, action: infer.ActionModelConfig},
	routeStats:          {get: true, action: infer.ActionStatistics},
	routeAllStats:       {get: true, action: infer.ActionStatistics},
	routeInfer:          {post: true, action: infer.ActionInference},
	routeGenerate:       {post: true, action: infer.ActionInference},
	routeGenerateStream: {post: true, action: infer.ActionInference},
	routeTrace:          {get: true, post: true, action: infer.ActionTrace},
	routeIndex:          {post: true, action: infer.ActionModelRepository},
	routePurge:          {post: true, action: infer.ActionModelRepository},
	routeLoad:           {post: true, action: infer.ActionModelRepository},
	routeUnload:         {post: true, action: infer.ActionModelRepository},
	routeRepositoryLoad: {post: true, action: infer.ActionModelRepository},
	routeLogging:        {get: true, post: true, action: infer.ActionLogging},
	routeMemoryStatus:   {get: true, action: infer.ActionSharedMemory},
	routeMemoryChange:   {post: true, action: infer.ActionSharedMemory},
}

// route is what a path names.
type route struct {
	kind           routeKind
	model, version string

	// Of calls about shared memory.
	verb   memoryVerb
	cuda   bool
	region string // "": all
}

func (r route) allows(method string) bool {
	return method == http.MethodGet && routes[r.kind].get || method == http.MethodPost && routes[r.kind].post
}

func (r route) methods() string {
	switch {
	case routes[r.kind].get && routes[r.kind].post:
		return "GET, POST"
	case routes[r.kind].get:
		return "GET"
	}
	return "POST"
}

// parsePath finds the route of a path as it was sent. The path is cut before it is
// decoded, so an encoded slash stays inside its segment.
func parsePath(path string) (route, bool) {
	rest, ok := strings.CutPrefix(path, "/v2")
	if !ok {
		return route{}, false
	}
	switch rest {
	case "":
		return route{kind: routeServer}, true
	case "/health/live":
		return route{kind: routeLive}, true
	case "/health/ready":
		return route{kind: routeReady}, true
	case "/logging":
		return route{kind: routeLogging}, true
	case "/trace/setting":
		return route{kind: routeTrace}, true
	case "/cache/purge":
		return route{kind: routePurge}, true
	case "/models/stats":
		return route{kind: routeAllStats}, true
	}
	if rest, ok := strings.CutPrefix(rest, "/models/"); ok {
		return modelRoute(rest)
	}
	if rest, ok := strings.CutPrefix(rest, "/repository/"); ok {
		return repositoryRoute(rest)
	}
	if rest, ok := strings.CutPrefix(rest, "/systemsharedmemory/"); ok {
		return memoryRoute(rest, false)
	}
	if rest, ok := strings.CutPrefix(rest, "/cudasharedmemory/"); ok {
		return memoryRoute(rest, true)
	}
	return route{}, false
}

// modelRoute reads {model}[/versions/{digits}][/{verb}].
func modelRoute(rest string) (route, bool) {
	name, rest, more := strings.Cut(rest, "/")
	if name == "" || more && rest == "" {
		return route{}, false
	}
	r := route{kind: routeModel, model: segment(name)}
	if after, ok := strings.CutPrefix(rest, "versions/"); ok {
		r.version, rest, more = strings.Cut(after, "/")
		if !digits(r.version) || more && rest == "" {
			return route{}, false
		}
	}
	switch rest {
	case "":
	case "ready":
		r.kind = routeModelReady
	case "config":
		r.kind = routeConfig
	case "stats":
		r.kind = routeStats
	case "infer":
		r.kind = routeInfer
	case "generate":
		r.kind = routeGenerate
	case "generate_stream":
		r.kind = routeGenerateStream
	case "trace/setting":
		if r.version != "" {
			return route{}, false // settings are a model's; source: the original's 404
		}
		r.kind = routeTrace
	default:
		return route{}, false
	}
	return r, true
}

// repositoryRoute reads [{repository}/]index and
// [{repository}/]models/{model}/{load,unload}.
func repositoryRoute(rest string) (route, bool) {
	kind := routeLoad
	if rest == "index" {
		return route{kind: routeIndex}, true
	}
	after, ok := strings.CutPrefix(rest, "models/")
	if !ok {
		repository, in, _ := strings.Cut(rest, "/")
		if repository == "" {
			return route{}, false
		}
		if in == "index" {
			return route{kind: routeIndex}, true
		}
		if after, ok = strings.CutPrefix(in, "models/"); !ok {
			return route{}, false
		}
		kind = routeRepositoryLoad
	}
	name, verb, _ := strings.Cut(after, "/")
	if name == "" || verb != "load" && verb != "unload" {
		return route{}, false
	}
	if verb == "unload" && kind == routeLoad {
		kind = routeUnload
	}
	return route{kind: kind, model: segment(name)}, true
}

// memoryRoute reads [region/{name}/]{status,register,unregister}.
func memoryRoute(rest string, cuda bool) (route, bool) {
	r := route{kind: routeMemoryChange, cuda: cuda}
	if after, ok := strings.CutPrefix(rest, "region/"); ok {
		var name string
		if name, rest, ok = strings.Cut(after, "/"); !ok || name == "" {
			return route{}, false
		}
		r.region = segment(name)
	}
	switch rest {
	case "status":
		r.kind = routeMemoryStatus
	case "register":
		r.verb = memoryRegister
	case "unregister":
		r.verb = memoryUnregister
	default:
		return route{}, false
	}
	return r, true
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// segment decodes a path segment. One that is no valid encoding, or hides a slash, a
// NUL or a dot segment, stays as it was sent: such a name belongs to no model, and
// nothing behind this ever sees it as a path.
func segment(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	d, err := url.PathUnescape(s)
	if err != nil || d == "." || d == ".." || strings.ContainsAny(d, "/\x00") {
		return s
	}
	return d
}
