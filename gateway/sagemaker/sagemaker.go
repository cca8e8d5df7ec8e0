package sagemaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// Binary begins the content type of bodies with binary tensors.
const Binary = "application/vnd.sagemaker-triton.binary+json;json-header-size="

// TargetHeader names the archive that a model comes from. The model is called so.
const TargetHeader = "X-Amzn-Sagemaker-Target-Model"

// Root is where the platform puts models.
const Root = "/opt/ml/models"

// Config is what the platform's environment says.
type Config struct {
	Live  bool   // /ping answers for liveness; false: for readiness
	Model string // of /invocations; "": none was named
	Call  string // what /invocations is: infer, generate or generate_stream
	Root  string // where models may be loaded from, absolute
}

// noModel is the model of /invocations where none is named.
// Source: the original's default of SAGEMAKER_TRITON_DEFAULT_MODEL_NAME.
const noModel = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"

// Validate says what is wrong with c.
func (c *Config) Validate() error {
	if c.Call != "infer" && c.Call != "generate" && c.Call != "generate_stream" {
		return fmt.Errorf("SAGEMAKER_TRITON_INFERENCE_TYPE is '%s': must be one of: infer, generate, generate_stream", c.Call)
	}
	if !filepath.IsAbs(c.Root) {
		return fmt.Errorf("'%s', where models may be loaded from, is no absolute path", c.Root)
	}
	return nil
}

// Models are loaded and unloaded; gateway/repository fits, with the Load of a call that
// brings nothing.
type Models interface {
	Register(path string, names map[string]string) error
	Unregister(ctx context.Context, path string) error
	Load(ctx context.Context, name string) error
	// Unload takes a model out of service, with dependents those that it alone needs.
	Unload(ctx context.Context, name string, dependents bool) error
	ModelReady(name, version string) (bool, error)
}

// Server knows which models the platform has loaded.
type Server struct {
	cfg    Config
	models Models
	log    *slog.Logger

	ping, invocations, list *httpapi.Alias

	mu     sync.Mutex
	loaded map[string]*model // mu; by the name in the platform's paths
}

// model is one that the platform loads, or has loaded.
type model struct {
	name   string         // of the model
	url    string         // of its repository
	ready  bool           // mu of the Server; false: it is being loaded, or unloaded
	invoke *httpapi.Alias // runs it
}

// New makes a Server that knows no model.
func New(cfg Config, models Models, log *slog.Logger) *Server {
	s := &Server{cfg: cfg, models: models, log: log, loaded: map[string]*model{}}
	if cfg.Model == "" {
		cfg.Model = noModel
	}
	s.ping = httpapi.Health(!cfg.Live)
	s.invocations = httpapi.Inference(cfg.Call, cfg.Model, nil)
	s.list = (&httpapi.Own{Action: infer.ActionModelRepository, Answer: s.answerList, Failed: loadStatus}).Alias()
	return s
}

// Platform is the Server as the HTTP front end takes it.
func (s *Server) Platform() *httpapi.Platform {
	return &httpapi.Platform{Alias: s.Alias, Binary: Binary, AnswerBinary: true}
}

// Alias says what a call is.
func (s *Server) Alias(call *httpapi.Call) *httpapi.Alias {
	switch call.Path {
	case "/ping":
		return s.ping
	case "/invocations":
		return s.invocations
	}
	name, invoke, ok := parse(call.Path)
	if !ok {
		return httpapi.Refuse(400)
	}
	switch call.Method {
	case "GET":
		if name == "" {
			return s.list
		}
		return s.get(name)
	case "POST":
		if invoke {
			return s.invoke(name, call.Header.Get(TargetHeader))
		}
		return s.loading(call.Header.Get(TargetHeader))
	case "DELETE":
		return s.unloading(name)
	}
	return httpapi.Refuse(400)
}

// parse reads /models[/][{name}[/invoke]].
func parse(path string) (name string, invoke, ok bool) {
	rest, ok := strings.CutPrefix(path, "/models")
	if !ok || rest != "" && rest[0] != '/' {
		return "", false, false
	}
	rest = strings.TrimPrefix(rest, "/")
	name, verb, more := strings.Cut(rest, "/")
	if more && (verb != "invoke" || name == "") {
		return "", false, false
	}
	return httpapi.Segment(name), more, true
}

func (s *Server) find(name string) (*model, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.loaded[name]
	return m, m != nil && m.ready
}

// invoke runs a model that was loaded; the right to run that model is asked for, whatever
// the path calls it. The platform names its archive with each call; one that names another
// was sent wrong, and would be another model's inference. Callers who may not run what was
// loaded get the answer that they would get had nothing been loaded.
func (s *Server) invoke(name, target string) *httpapi.Alias {
	m, ok := s.find(name)
	if ok && (target == "" || target == m.name) {
		return m.invoke
	}
	asked := cmp.Or(target, name) // no model of the Own: the pipeline would look for it
	own := &httpapi.Own{Action: infer.ActionInference, Failed: invokeStatus}
	own.Answer = func(_ context.Context, q *httpapi.Question, reply *httpapi.Reply) error {
		if err := q.Allowed(asked); err != nil {
			return err
		}
		if ok && q.Visible(m.name) {
			return infer.Errorf(infer.InvalidArg, "model '%s' was loaded as '%s', not as '%s'", name, m.name, target)
		}
		reply.Empty(404)
		return nil
	}
	return own.Alias()
}

// oneModel is the answer to GET /models/{name}.
type oneModel struct {
	Name string `json:"modelName"`
	URL  string `json:"modelUrl"`
}

func (s *Server) get(name string) *httpapi.Alias {
	m, ok := s.find(name)
	own := &httpapi.Own{Action: infer.ActionModelRepository, Model: name, Failed: loadStatus}
	if ok {
		own.Model = m.name
	}
	own.Answer = func(_ context.Context, _ *httpapi.Question, reply *httpapi.Reply) error {
		if !ok {
			reply.Empty(404)
			return nil
		}
		return answer(reply, oneModel{name, m.url})
	}
	return own.Alias()
}

// answerList lists the models that can be called. The original has an empty object for
// each of the others.
func (s *Server) answerList(_ context.Context, q *httpapi.Question, reply *httpapi.Reply) error {
	all := struct {
		Models []oneModel `json:"models"`
	}{[]oneModel{}}
	for name, m := range s.ready() {
		if ok, err := s.models.ModelReady(m.name, ""); ok && err == nil && q.Visible(m.name) {
			all.Models = append(all.Models, oneModel{name, m.url})
		}
	}
	sortModels(all.Models)
	return answer(reply, all)
}

func (s *Server) ready() map[string]*model {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := map[string]*model{}
	for name, m := range s.loaded {
		if m.ready {
			some[name] = m
		}
	}
	return some
}

// loading is POST /models. Without the header the body alone says what the model will be
// called, so that the right to load any is asked for. With it the right to control what the
// body names is asked for as well: callers of that name will run this model.
func (s *Server) loading(target string) *httpapi.Alias {
	own := &httpapi.Own{Action: infer.ActionModelRepository, Change: true, Model: target, Failed: loadStatus}
	own.Answer = func(ctx context.Context, q *httpapi.Question, reply *httpapi.Reply) error {
		doc, err := q.Document(ctx)
		if err != nil {
			return err
		}
		var name, url string
		if err := httpapi.Strings(doc, map[string]*string{"model_name": &name, "url": &url}); err != nil {
			return err
		}
		if target = strings.Clone(target); target == "" { // the header is the call's
			target = name
		}
		if err := s.loadModel(ctx, q, loadCall{name, target, url}); err != nil {
			return err
		}
		reply.Empty(200)
		return nil
	}
	return own.Alias()
}

// loadCall is what a call of POST /models says.
type loadCall struct {
	name   string // in the platform's paths
	target string // of the model
	url    string // of the archive
}

// loadModel registers the repository that the URL means and loads its model, called target.
// Every name that the load gives to something is one that the caller may control.
func (s *Server) loadModel(ctx context.Context, q *httpapi.Question, call loadCall) error {
	name, target := call.name, call.target
	if name == "" {
		return infer.Errorf(infer.InvalidArg, "\"model_name\" is missing")
	}
	if name == "." || name == ".." || httpapi.Segment(url.PathEscape(name)) != name { // nobody could call or unload it
		return infer.Errorf(infer.InvalidArg, "model_name '%s' can't stand in a path", clip(name))
	}
	if err := q.Allowed(name); err != nil {
		return err
	}
	at, err := s.cfg.locate(call.url)
	if err != nil {
		return err
	}
	others, err := beside(at)
	if err != nil {
		return err
	}
	for _, other := range others {
		if err := q.Allowed(other); err != nil {
			return err
		}
	}
	m := &model{name: target, url: at.repository, invoke: httpapi.Inference("infer", target, invokeStatus)}
	s.mu.Lock()
	other := s.loaded[name]
	if other == nil {
		s.loaded[name] = m
	}
	s.mu.Unlock()
	switch {
	case other != nil && other.url == at.repository: // the words that the repository has for it
		return infer.Errorf(infer.AlreadyExists, "model repository '%s' has already been registered", at.repository)
	case other != nil:
		return infer.Errorf(infer.AlreadyExists, "failed to register '%s', there is a conflicting mapping for '%s'", target, target)
	}
	s.log.Info("Loading SageMaker TargetModel: "+target, "repository", at.repository, "folder", at.folder)
	// the platform takes a load for undone when it leaves, and asks again
	if err := s.take(context.WithoutCancel(ctx), at, target); err != nil {
		s.forget(name)
		return err
	}
	s.mu.Lock()
	m.ready = true
	s.mu.Unlock()
	return nil
}

// take registers and loads; of what fails nothing is left.
func (s *Server) take(ctx context.Context, at place, target string) error {
	if err := s.models.Register(at.repository, map[string]string{at.folder: target}); err != nil {
		return err
	}
	err := s.models.Load(ctx, target)
	if err == nil {
		return nil
	}
	if left := s.models.Unregister(ctx, at.repository); left != nil {
		s.log.Error("the repository of a model that could not be loaded stays registered", "repository", at.repository, "error", left)
	}
	return err
}

func (s *Server) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loaded, name)
}

// unloadTimeout bounds how long an unload waits for the requests that hold the model. The
// platform waits six minutes.
// Source: UNLOAD_TIMEOUT_SECS_ of the original.
const unloadTimeout = 350 * time.Second

// unloading is DELETE /models/{name}. It answers when the model's memory is free, or after
// unloadTimeout; nobody gets the model any more then either, and its memory goes later. The
// right to control both the model and the name in the path is asked for, as for the load.
func (s *Server) unloading(name string) *httpapi.Alias {
	own := &httpapi.Own{Action: infer.ActionModelRepository, Change: true, Model: name, Failed: loadStatus}
	if m, ok := s.find(name); ok {
		own.Model = m.name
	}
	own.Answer = func(ctx context.Context, q *httpapi.Question, reply *httpapi.Reply) error {
		if err := q.Allowed(name); err != nil {
			return err
		}
		m := s.leave(name, own.Model)
		if m == nil {
			reply.Empty(404)
			return nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unloadTimeout)
		defer cancel()
		s.log.Info("Unloading SageMaker TargetModel: " + m.name)
		err := errors.Join(s.models.Unload(ctx, m.name, true), s.models.Unregister(ctx, m.url))
		s.forget(name)
		if err != nil {
			return err
		}
		reply.Empty(200)
		return nil
	}
	return own.Alias()
}

// leave takes a model out, once. It must be the one that was decided on.
func (s *Server) leave(name, decided string) *model {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.loaded[name]
	if m == nil || !m.ready || m.name != decided {
		return nil
	}
	m.ready = false
	return m
}
