// Package vertex is the front end that Google's Vertex AI calls: a route for health and
// one for predictions, whose header may send a call on to a route of the protocol that
// only reads. It only says what a call means; calls are carried, decided on and answered
// by gateway/httpapi: one that is sent on is decided as what it is sent on to.
//
// A Server is safe for concurrent use and has no goroutine.
//
// Source: vertex_ai_server.cc of the original 2.73.
package vertex

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// Binary begins the content type of requests with binary tensors. Answers have the
// protocol's own.
const Binary = "application/vnd.vertex-ai-triton.binary+json;json-header-size="

// RedirectHeader names the path, without its first slash, that a prediction call stands
// for.
const RedirectHeader = "X-Vertex-Ai-Triton-Redirect"

// Config is what the platform's environment and the flags say.
type Config struct {
	Predict string // AIP_PREDICT_ROUTE
	Health  string // AIP_HEALTH_ROUTE
	Default string // --vertex-ai-default-model; "": the only model
}

// Validate says what is wrong with c, in the original's words.
func (c *Config) Validate() error {
	switch {
	case c.Predict == "":
		return errors.New("API_PREDICT_ROUTE is not defined for Vertex AI endpoint")
	case c.Health == "":
		return errors.New("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint")
	}
	return nil
}

// Metrics gives the metrics as text, and its content type.
type Metrics func(ctx context.Context) (contentType string, text []byte, err error)

// Server answers Vertex AI.
type Server struct {
	cfg     Config
	health  *httpapi.Alias
	metrics *httpapi.Alias
	predict atomic.Pointer[httpapi.Alias]
}

// New makes a Server whose predictions are refused until Serving is called. metrics nil:
// there are none.
func New(cfg Config, metrics Metrics) *Server {
	s := &Server{cfg: cfg, health: httpapi.Health(true), metrics: httpapi.Refuse(400)}
	s.predict.Store(httpapi.Fault(infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Server not ready")))
	if metrics != nil {
		s.metrics = (&httpapi.Own{Action: infer.ActionMetrics, Answer: func(ctx context.Context, _ *httpapi.Question, reply *httpapi.Reply) error {
			contentType, text, err := metrics(ctx)
			if err != nil {
				return err
			}
			reply.Answer(contentType, text)
			return nil
		}}).Alias()
	}
	return s
}

// Serving says which models were loaded at the start, of which one is the default. The
// errors are the original's, but that a model of several versions is one.
func (s *Server) Serving(models []string) error {
	models = slices.Compact(slices.Sorted(slices.Values(models)))
	name := s.cfg.Default
	switch {
	case name == "" && len(models) != 1:
		return errors.New("Expect the model repository contains only a single model if default model is not specified")
	case name == "":
		name = models[0]
	case !slices.Contains(models, name):
		return fmt.Errorf("Expect the default model '%s' is loaded", name)
	}
	s.predict.Store(httpapi.Inference("infer", name, nil))
	return nil
}

// Platform is the Server as the HTTP front end takes it.
func (s *Server) Platform() *httpapi.Platform {
	return &httpapi.Platform{Alias: s.Alias, Binary: Binary}
}

// Alias says what a call is.
func (s *Server) Alias(call *httpapi.Call) *httpapi.Alias {
	switch {
	case same(call.Path, s.cfg.Health):
		return s.health
	case !same(call.Path, s.cfg.Predict):
		return httpapi.Refuse(400)
	case call.Header.Count(RedirectHeader) == 0:
		return s.predict.Load()
	case call.Method != "POST":
		return httpapi.Refuse(405)
	}
	switch to := "/" + call.Header.Get(RedirectHeader); to {
	case "/metrics":
		return s.metrics
	default:
		return httpapi.Redirect(to)
	}
}

// same says that a path, as it was sent, is a route.
func same(path, route string) bool {
	if path == route || !strings.Contains(path, "%") {
		return path == route
	}
	plain, err := url.PathUnescape(path)
	return err == nil && plain == route
}
