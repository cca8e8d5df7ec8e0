package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/sagemaker"
	"github.com/sluice-serve/sluice/gateway/vertex"
	"github.com/sluice-serve/sluice/infer"
)

// SageMakerConfig is --allow-sagemaker and --sagemaker-….
type SageMakerConfig struct {
	Listen
	sagemaker.Config
	TLS TLSFiles
	// Safe bounds the ports of all other front ends; nil: nothing does.
	Safe *PortRange
}

// PortRange is the ports from Low to High, both among them.
type PortRange struct{ Low, High int }

// VertexConfig is --allow-vertex-ai and --vertex-ai-….
type VertexConfig struct {
	Listen
	vertex.Config
	TLS TLSFiles
}

// defaultPlatforms are the platforms' front ends without flags: off.
func defaultPlatforms() (SageMakerConfig, VertexConfig) {
	l := Listen{Address: "0.0.0.0", Port: 8080}
	return SageMakerConfig{Listen: l, Config: sagemaker.Config{Call: "infer", Root: sagemaker.Root}}, VertexConfig{Listen: l}
}

// validatePlatforms says what is wrong with the platforms' front ends, and with the ports
// of all.
func (c *Config) validatePlatforms() error {
	var errs []error
	if s := &c.SageMaker; s.Allow {
		errs = append(errs, prefix("failed to start Sagemaker service", s.Validate()), checkTLS("sagemaker", s.TLS))
	}
	if v := &c.Vertex; v.Allow {
		errs = append(errs, prefix("failed to start Vertex AI service", v.Validate()), checkTLS("vertex-ai", v.TLS))
	}
	return errors.Join(append(errs, c.checkPorts())...)
}

func prefix(text string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", text, err)
}

// checkPorts finds two front ends at one address and port, and ports that
// --sagemaker-safe-port-range forbids. Port 0 is any free one.
// Source: CheckPortCollision of the original, whose words these are.
func (c *Config) checkPorts() error {
	type front struct {
		name string
		at   *Listen
	}
	var on []front
	for _, f := range []front{{"HTTP", &c.HTTP.Listen}, {"GRPC", &c.GRPC.Listen}, {"metrics", &c.Metrics.Listen}, {"SageMaker", &c.SageMaker.Listen}, {"Vertex AI", &c.Vertex.Listen}} {
		if f.at.Allow && f.at.Port > 0 {
			on = append(on, f)
		}
	}
	var errs []error
	for i, f := range on {
		for _, g := range on[i+1:] {
			if f.at.Address == g.at.Address && f.at.Port == g.at.Port && !(f.at.Reuse && g.at.Reuse) {
				errs = append(errs, fmt.Errorf("The server cannot listen to %s requests and %s requests at the same address and port %s:%d", f.name, g.name, f.at.Address, f.at.Port))
			}
		}
		safe := c.SageMaker.Safe
		if c.SageMaker.Allow && safe != nil && f.at != &c.SageMaker.Listen && f.at.Address == c.SageMaker.Address && (f.at.Port < safe.Low || f.at.Port > safe.High) {
			errs = append(errs, fmt.Errorf("The server cannot listen to %s requests at port %d, allowed port range is [%d, %d]", f.name, f.at.Port, safe.Low, safe.High))
		}
	}
	return errors.Join(errs...)
}

// platform is the front end of a hosting platform.
type platform struct {
	name   string // as the log has it
	at     *Listen
	server *httpapi.Server
}

// openPlatforms opens the listeners of the platforms' front ends that are on.
func (g *Gateway) openPlatforms(ctx context.Context) error {
	if c := &g.cfg.SageMaker; c.Allow {
		s := sagemaker.New(c.Config, sagemakerModels{g.models}, g.logger)
		if err := g.openPlatform(ctx, platformSpec{"Sagemaker HTTPService", "sagemaker", &c.Listen, c.TLS, s.Platform()}); err != nil {
			return err
		}
	}
	if c := &g.cfg.Vertex; c.Allow {
		var metrics vertex.Metrics
		if g.cfg.Metrics.Allow {
			metrics = g.scrape
		}
		g.vertex = vertex.New(c.Config, metrics)
		return g.openPlatform(ctx, platformSpec{"Vertex AI HTTPService", "vertex-ai", &c.Listen, c.TLS, g.vertex.Platform()})
	}
	return nil
}

type platformSpec struct {
	title, name string
	at          *Listen
	tls         TLSFiles
	platform    *httpapi.Platform
}

// openPlatform makes a front end like that of HTTP, with the platform's paths.
func (g *Gateway) openPlatform(ctx context.Context, p platformSpec) error {
	api, err := httpapi.NewAPI(httpapi.APIConfig{Limits: httpapi.Limits{MaxJSON: g.cfg.HTTP.MaxInputSize}, Platform: p.platform}, g.apiDeps(p.name))
	if err != nil {
		return err
	}
	secure, err := g.secure(p.name, p.tls, "h2", "http/1.1")
	if err != nil {
		return err
	}
	sockets := p.at.config()
	sockets.Descriptors = g.files
	sockets.Count = &g.observer.connections.http
	s := httpapi.NewServer(httpapi.Config{Config: sockets, Secure: secure, Transport: httpapi.Transport(g.cfg.HTTP.Transport), Loops: g.loops}, api, g.logger)
	if err := s.Listen(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	g.platforms = append(g.platforms, platform{p.title, p.at, s})
	return nil
}

// startPlatforms is told that the models were loaded.
func (g *Gateway) startPlatforms() error {
	if g.vertex == nil {
		return nil
	}
	var names []string
	for _, m := range g.models.Index(true).Models {
		names = append(names, m.Name)
	}
	return prefix("failed to start Vertex AI service", g.vertex.Serving(names))
}

// sagemakerModels is the repository as gateway/sagemaker wants it.
type sagemakerModels struct{ *repository.Repository }

func (m sagemakerModels) Load(ctx context.Context, name string) error {
	return m.Repository.Load(ctx, name, &repository.Override{})
}

// scrape gives the metrics as text.
func (g *Gateway) scrape(ctx context.Context) (contentType string, text []byte, err error) {
	out := page{header: http.Header{}}
	g.stats.Handler().ServeHTTP(&out, (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/metrics"}, Header: http.Header{}}).WithContext(ctx))
	if out.status >= 300 {
		return "", nil, infer.Errorf(infer.Unavailable, "the metrics can't be read now: status %d", out.status)
	}
	return out.header.Get("Content-Type"), out.body.Bytes(), nil
}

// page is an answer of net/http in memory.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *page) Header() http.Header         { return p.header }
func (p *page) WriteHeader(status int)      { p.status = status }
func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }

// describePlatforms are the rows of the start-up table of settings.
func (c *Config) describePlatforms() [][]string {
	var rows [][]string
	if s := &c.SageMaker; s.Allow {
		rows = append(rows, []string{"sagemaker_default_model", s.Model}, []string{"sagemaker_inference_type", s.Call}, []string{"sagemaker_model_directory", s.Root},
			[]string{"sagemaker_ping_live", strconv.FormatBool(s.Live)})
	}
	if v := &c.Vertex; v.Allow {
		rows = append(rows, []string{"vertex_ai_default_model", v.Default}, []string{"vertex_ai_predict_route", v.Predict}, []string{"vertex_ai_health_route", v.Health})
	}
	return rows
}
