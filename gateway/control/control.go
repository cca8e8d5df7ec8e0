// Package control answers every call that is no inference, for all front ends alike:
// health, metadata, model configurations, statistics, the repository index, the log
// settings and the trace settings.
//
// A Server is safe for concurrent use and has no goroutine of its own.
package control

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/tracing"
)

// Models is the model repository as control needs it; gateway/repository fits it.
// Errors are infer's; an unknown model or version is NotFound in its words.
type Models interface {
	Ready() bool // all models are, or readiness is not strict
	// Degraded is Ready, or that some models serve while others are loaded or have failed,
	// or will serve once their worker has been started again: requests for them wait.
	Degraded() bool
	ModelReady(name, version string) (bool, error)
	// ServerReadyNow and ModelReadyNow are Ready and ModelReady, and ask the models that say themselves
	// whether they are ready. They may take seconds.
	ServerReadyNow(ctx context.Context) bool
	ModelReadyNow(ctx context.Context, name, version string) (bool, error)
	Metadata(name, version string) (*inference.ModelMetadataResponse, error)
	Config(name, version string) (*modelconfig.ModelConfig, error)
	Statistics(name, version string) (*inference.ModelStatisticsResponse, error)
	Index(ready bool) *inference.RepositoryIndexResponse
	// Load and Unload are those calls of the model repository extension.
	Load(ctx context.Context, name string, call *repository.Override) error
	Unload(ctx context.Context, name string, dependents bool) error
	// RawInput is the one input of a model, in the shape that a raw request of so many
	// bytes fills.
	RawInput(name, version string, size int64) (infer.Tensor, error)
}

// Deps are a Server's collaborators.
type Deps struct {
	Models Models
	Log    *logging.Log
	Tracer *tracing.Tracer // nil: tracing can't be turned on
	Cache  Cache           // nil: there is none
}

// Server answers control calls.
type Server struct {
	name, version string
	models        Models
	log           *logging.Log
	tracer        *tracing.Tracer
	cache         Cache
	state         atomic.Int32

	mu       sync.Mutex
	watchers map[*watcher]struct{} // mu
}

// The states of a Server, in the order it passes them.
const (
	starting int32 = iota
	serving
	stopping
)

// New makes a Server that is live, and not ready until Serving is called.
func New(name, version string, deps Deps) *Server {
	return &Server{name: name, version: version, models: deps.Models, log: deps.Log, tracer: deps.Tracer, cache: deps.Cache, watchers: map[*watcher]struct{}{}}
}

// Serving says that the start is over.
func (s *Server) Serving() { s.state.CompareAndSwap(starting, serving); s.Changed() }

// Stopping makes the server and its models not ready, for good.
func (s *Server) Stopping() { s.state.Store(stopping); s.Changed() }

// Changed tells the watchers what Ready says now. It must not be called with locks held
// that Models.Ready takes.
func (s *Server) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := s.Ready()
	for w := range s.watchers {
		w.tell(ready)
	}
}

// watcher is one WatchReady. Its channel holds the newest value that was not taken.
type watcher struct {
	news chan bool
	last bool // what was told last
}

func (w *watcher) tell(ready bool) {
	if ready == w.last {
		return
	}
	w.last = ready
	select {
	case <-w.news: // outdated
	default:
	}
	w.news <- ready
}

// WatchReady sends what Ready says: at once, then at every change, until ctx ends, when
// it is closed. Only the newest value counts for a slow receiver.
func (s *Server) WatchReady(ctx context.Context) <-chan bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{news: make(chan bool, 1), last: s.Ready()}
	w.news <- w.last
	s.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
		close(w.news)
	})
	return w.news
}

// Live says that the server answers.
func (s *Server) Live() bool { return true }

// Ready says that requests are welcome.
func (s *Server) Ready() bool { return s.state.Load() == serving && s.models.Ready() }

// Degraded says that Ready says no, but requests are worth sending: models other than those
// that are not ready serve, or workers are started again, for which requests wait.
func (s *Server) Degraded() bool {
	return s.state.Load() == serving && !s.models.Ready() && s.models.Degraded()
}

// ReadyNow is Ready, and asks the models that say themselves whether they are ready. It may take seconds.
func (s *Server) ReadyNow(ctx context.Context) bool {
	return s.state.Load() == serving && s.models.ServerReadyNow(ctx)
}

// ModelReadyNow is ModelReady, and asks the model where it says itself whether it is ready. It may take seconds.
func (s *Server) ModelReadyNow(ctx context.Context, name, version string) (bool, error) {
	if s.state.Load() == stopping {
		return false, nil
	}
	ok, err := s.models.ModelReadyNow(ctx, name, version)
	if err != nil && infer.CodeOf(err) != infer.InvalidArg {
		return false, nil
	}
	return ok, err
}

// ModelReady says that a model version can serve; version "" is the newest. What is
// not there is not ready; a version that is no number is InvalidArg.
func (s *Server) ModelReady(name, version string) (bool, error) {
	if s.state.Load() == stopping {
		return false, nil
	}
	ok, err := s.models.ModelReady(name, version)
	if err != nil && infer.CodeOf(err) != infer.InvalidArg {
		return false, nil
	}
	return ok, err
}

// extensions are those of the v2 protocol that this server really has.
var extensions = []string{"classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
	"model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace", "logging"}

// ServerMetadata names the server and its extensions.
func (s *Server) ServerMetadata() *inference.ServerMetadataResponse {
	return &inference.ServerMetadataResponse{Name: s.name, Version: s.version, Extensions: slices.Clone(extensions)}
}

// ModelMetadata describes a model's tensors.
func (s *Server) ModelMetadata(name, version string) (*inference.ModelMetadataResponse, error) {
	return s.models.Metadata(name, version)
}

// ModelConfig is a model's completed configuration. It must not be changed.
func (s *Server) ModelConfig(name, version string) (*modelconfig.ModelConfig, error) {
	return s.models.Config(name, version)
}

// Statistics are those of one model, or of all with name "".
func (s *Server) Statistics(name, version string) (*inference.ModelStatisticsResponse, error) {
	return s.models.Statistics(name, version)
}

// Index lists the repositories' models; ready leaves out those that can't serve.
func (s *Server) Index(ready bool) (*inference.RepositoryIndexResponse, error) {
	return s.models.Index(ready), nil
}

// RawInput is Models.RawInput.
func (s *Server) RawInput(name, version string, size int64) (infer.Tensor, error) {
	return s.models.RawInput(name, version, size)
}

// LogSettings changes the settings that the request names and returns all of them.
// Changing the file is Unsupported; a value of the wrong type is InvalidArg, and then
// nothing has changed; unknown names are ignored.
// Source: the logging extension; texts of the original.
func (s *Server) LogSettings(req *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	set := s.log.Settings()
	for name, v := range req.GetSettings() {
		if err := change(&set, name, v); err != nil {
			return nil, err
		}
	}
	if set.Validate() != nil { // the original's words; its 503 would be retried in vain
		return nil, infer.Errorf(infer.InvalidArg, "invalid argument for log_format, got: %s", set.Format)
	}
	if len(req.GetSettings()) > 0 {
		if err := s.log.Set(set); err != nil {
			return nil, infer.Errorf(infer.InvalidArg, "%w", err)
		}
	}
	flag := func(v bool) *inference.LogSettingsResponse_SettingValue {
		return &inference.LogSettingsResponse_SettingValue{ParameterChoice: &inference.LogSettingsResponse_SettingValue_BoolParam{BoolParam: v}}
	}
	text := func(v string) *inference.LogSettingsResponse_SettingValue {
		return &inference.LogSettingsResponse_SettingValue{ParameterChoice: &inference.LogSettingsResponse_SettingValue_StringParam{StringParam: v}}
	}
	return &inference.LogSettingsResponse{Settings: map[string]*inference.LogSettingsResponse_SettingValue{
		"log_file": text(set.File), "log_info": flag(set.Info), "log_warning": flag(set.Warning), "log_error": flag(set.Error),
		"log_verbose_level": {ParameterChoice: &inference.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: set.Verbose}},
		"log_format":        text(set.Format),
	}}, nil
}

func change(set *logging.Settings, name string, v *inference.LogSettingsRequest_SettingValue) error {
	wrong := func(kind string) error {
		return infer.Errorf(infer.InvalidArg, "expect %s for '%s'", kind, name)
	}
	flag := func(p *bool) error {
		b, ok := v.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_BoolParam)
		if !ok {
			return wrong("boolean")
		}
		*p = b.BoolParam
		return nil
	}
	switch name {
	case "log_file":
		return infer.Errorf(infer.Unsupported, "log file location can not be updated through network protocol")
	case "log_info":
		return flag(&set.Info)
	case "log_warning":
		return flag(&set.Warning)
	case "log_error":
		return flag(&set.Error)
	case "log_verbose_level":
		n, ok := v.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_Uint32Param)
		if !ok {
			return wrong("int32") // the original's word for it
		}
		set.Verbose = n.Uint32Param
		return nil
	case "log_format":
		f, ok := v.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_StringParam)
		if !ok {
			return wrong("string")
		}
		set.Format = f.StringParam
		return nil
	}
	return nil // the original ignores what it does not know, and clients of newer servers send more
}
