package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/control"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/memory"
	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/sagemaker"
	"github.com/sluice-serve/sluice/gateway/vertex"
	"github.com/sluice-serve/sluice/infer"
)

// callHeader is a header with one value for each name.
type callHeader map[string]string

func (h callHeader) Get(name string) string {
	for n, v := range h {
		if strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

func (h callHeader) Count(name string) int {
	for n := range h {
		if strings.EqualFold(n, name) {
			return 1
		}
	}
	return 0
}

func (h callHeader) Each(f func(name, value string) bool) {
	for n, v := range h {
		if !f(n, v) {
			return
		}
	}
}

// asked is a pipeline that remembers what it was asked to decide.
type asked struct {
	*pipeline.Pipeline
	env []infer.Envelope
}

func (a *asked) Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	a.env = append(a.env, *env)
	return a.Pipeline.Open(ctx, env)
}

// platformModels loads whatever it is asked to.
type platformModels struct{ *repository.Repository }

func (platformModels) Register(string, map[string]string) error      { return nil }
func (platformModels) Unregister(context.Context, string) error      { return nil }
func (platformModels) Load(context.Context, string) error            { return nil }
func (platformModels) Unload(context.Context, string, bool) error    { return nil }
func (platformModels) ModelReady(name, version string) (bool, error) { return true, nil }

// platformFront is the front end of a platform, guarded by matrixPolicy.
func platformFront(t *testing.T, guard *auth.Auth, p *httpapi.Platform) (*httpapi.API, *asked) {
	t.Helper()
	repo := repository.New(repository.Config{}, repository.Deps{Log: slog.New(slog.DiscardHandler)})
	line := &asked{Pipeline: pipeline.New(pipeline.Config{}, pipeline.Deps{Models: models{repo}, Guard: guard})}
	api, err := httpapi.NewAPI(httpapi.APIConfig{Platform: p}, httpapi.APIDeps{Pipeline: line, Bodies: &memory.Bodies{Limit: 1 << 20},
		Control: control.New("s", "1", control.Deps{Models: repo})})
	if err != nil {
		t.Fatal(err)
	}
	return api, line
}

// platformRoutes are all calls of the platforms' front ends. action "" is one that is
// refused with the status before anybody is asked; else the action, "!" before it where
// something changes, and the model.
var platformRoutes = []struct {
	front, method, path, header string
	action, model               string
	status                      int
}{
	{"sagemaker", "GET", "/ping", "", "health", "", 0},
	{"sagemaker", "POST", "/invocations", "", "inference", "m", 0},
	{"sagemaker", "GET", "/models", "", "model-repository", "", 0},
	{"sagemaker", "GET", "/models/", "", "model-repository", "", 0},
	{"sagemaker", "GET", "/models/m", "", "model-repository", "m", 0},
	{"sagemaker", "GET", "/models/other", "", "model-repository", "other", 0},
	{"sagemaker", "POST", "/models", "", "!model-repository", "", 0},
	{"sagemaker", "POST", "/models", "m", "!model-repository", "m", 0},
	{"sagemaker", "POST", "/models/m", "m", "!model-repository", "m", 0},
	{"sagemaker", "DELETE", "/models/m", "", "!model-repository", "m", 0},
	{"sagemaker", "DELETE", "/models/other", "m", "!model-repository", "other", 0},
	{"sagemaker", "POST", "/models/m/invoke", "", "inference", "m", 0},
	{"sagemaker", "POST", "/models/m/invoke", "m", "inference", "m", 0},
	{"sagemaker", "POST", "/models/m/invoke", "other", "inference", "", 0}, // and then on what the header names
	{"sagemaker", "POST", "/models/other/invoke", "m", "inference", "", 0},
	{"sagemaker", "GET", "/v2", "", "", "", 400},
	{"sagemaker", "POST", "/v2/repository/models/m/load", "", "", "", 400},
	{"vertex", "GET", "/health", "", "health", "", 0},
	{"vertex", "POST", "/predict", "", "inference", "m", 0},
	{"vertex", "POST", "/predict", "metrics", "metrics", "", 0},
	{"vertex", "POST", "/predict", "v2", "metadata", "", 0},
	{"vertex", "POST", "/predict", "v2/health/live", "health", "", 0},
	{"vertex", "POST", "/predict", "v2/health/ready", "health", "", 0},
	{"vertex", "POST", "/predict", "v2/models/m", "metadata", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/m/versions/1", "metadata", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/m/ready", "health", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/m/config", "model-config", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/m/stats", "statistics", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/stats", "statistics", "", 0},
	{"vertex", "POST", "/predict", "v2/models/m/infer", "inference", "m", 0},
	{"vertex", "POST", "/predict", "v2/models/other/infer", "inference", "other", 0},
	{"vertex", "POST", "/predict", "v2/repository/index", "model-repository", "", 0},
	{"vertex", "POST", "/predict", "v2/systemsharedmemory/status", "shared-memory", "", 0},
	{"vertex", "POST", "/predict", "v2/cudasharedmemory/status", "shared-memory", "", 0},
	{"vertex", "POST", "/predict", "v2/repository/models/m/load", "", "", 403},
	{"vertex", "POST", "/predict", "v2/repository/models/m/unload", "", "", 403},
	{"vertex", "POST", "/predict", "v2/systemsharedmemory/region/a/register", "", "", 403},
	{"vertex", "POST", "/predict", "v2/cudasharedmemory/unregister", "", "", 403},
	{"vertex", "POST", "/predict", "v2/logging", "", "", 400},
	{"vertex", "POST", "/predict", "v2/trace/setting", "", "", 400},
	{"vertex", "POST", "/predict", "v2/cache/purge", "", "", 400},
	{"vertex", "POST", "/predict", "v2/models/m/generate", "", "", 400},
	{"vertex", "GET", "/predict", "v2", "", "", 405},
	{"vertex", "POST", "/v2/models/m/infer", "", "", "", 400},
}

// TestPlatformMatrix: every call of the platforms and every caller. Each is decided once,
// as what it stands for, with the rights that the protocol's own call needs.
func TestPlatformMatrix(t *testing.T) {
	guard, callers := matrix(t)
	root := filepath.Join(t.TempDir(), "opt")
	if err := os.MkdirAll(filepath.Join(root, "a/model/m"), 0o755); err != nil {
		t.Fatal(err)
	}
	sm := sagemaker.New(sagemaker.Config{Call: "infer", Model: "m", Root: root}, platformModels{}, slog.New(slog.DiscardHandler))
	vx := vertex.New(vertex.Config{Predict: "/predict", Health: "/health"}, func(context.Context) (string, []byte, error) { return "text/plain", []byte("x 1\n"), nil })
	if err := vx.Serving([]string{"m", "m"}); err != nil {
		t.Fatal(err)
	}
	apis, lines := map[string]*httpapi.API{}, map[string]*asked{}
	apis["sagemaker"], lines["sagemaker"] = platformFront(t, guard, sm.Platform())
	apis["vertex"], lines["vertex"] = platformFront(t, guard, vx.Platform())
	ask := func(who, front, method, path, header, body string) (int, string) {
		h := callHeader{"X-Api-Key": callers[who]}
		if header != "" {
			h[map[string]string{"sagemaker": sagemaker.TargetHeader, "vertex": vertex.RedirectHeader}[front]] = header
		}
		var reply httpapi.Reply
		apis[front].Serve(t.Context(), &httpapi.Call{Method: method, Path: path, Header: h, Body: strings.NewReader(body), Length: int64(len(body)),
			Remote: netip.MustParseAddrPort("192.0.2.1:1")}, &reply)
		defer reply.Release()
		return reply.Status, string(bytes.Join(reply.Chunks, nil))
	}
	loaded := func() {
		ask("root", "sagemaker", "POST", "/models", "m", `{"model_name":"m","url":"`+root+`/a/model"}`)
		lines["sagemaker"].env = nil
	}
	for who := range matrixRights {
		for _, r := range platformRoutes {
			loaded()
			line := lines[r.front]
			line.env = nil
			name := strings.Join([]string{who, r.front, r.method, r.path, r.header}, " ")
			status, body := ask(who, r.front, r.method, r.path, r.header, `{}`)
			if r.action == "" {
				if status != r.status || len(line.env) != 0 {
					t.Errorf("%s: %d, want %d; the pipeline was asked %d times", name, status, r.status, len(line.env))
				}
				continue
			}
			action, change := strings.TrimPrefix(r.action, "!"), strings.HasPrefix(r.action, "!")
			if len(line.env) != 1 {
				t.Errorf("%s: the pipeline was asked %d times", name, len(line.env))
				continue
			}
			if env := line.env[0]; env.Action.String() != action || env.Change != change || env.Model != r.model || env.Method != r.method || env.Path != r.path {
				t.Errorf("%s: decided as %+v", name, env)
			}
			// what is not loaded is no model that a right could be about, but for what the header names
			other := r.model == "other" || r.front == "sagemaker" && r.header == "other"
			want := may(who, action, change) && !(who == "app" && action == "inference" && other)
			allowed := status != 401 && status != 403
			if action == "shared-memory" && !want && status == 501 {
				allowed = false // from another host nobody may, whatever their rights
			}
			if allowed != want {
				t.Errorf("%s: %d %s, want allowed %t", name, status, body, want)
			}
			if !want && strings.Contains(body, root) {
				t.Errorf("%s: who has no right sees %s", name, body)
			}
		}
	}
}

// TestPorts: which ports go together.
// Source of the texts: CheckPortCollision of the original.
func TestPorts(t *testing.T) {
	for _, row := range []struct {
		set  func(c *Config)
		want string
	}{
		{func(c *Config) { c.HTTP.Port = 8001 }, "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8001"},
		{func(c *Config) { c.HTTP.Port = 0; c.GRPC.Port = 0 }, ""},
		{func(c *Config) { c.HTTP.Port = 8080 }, ""},
		{func(c *Config) { c.SageMaker.Allow = true; c.HTTP.Port = 8080 }, "The server cannot listen to HTTP requests and SageMaker requests at the same address and port 0.0.0.0:8080"},
		{func(c *Config) { c.SageMaker.Allow = true; c.SageMaker.Address = "127.0.0.1"; c.HTTP.Port = 8080 }, ""},
		{func(c *Config) {
			c.SageMaker.Allow = true
			c.SageMaker.Safe = &PortRange{8000, 8002}
			c.GRPC.Port = 8005
		},
			"The server cannot listen to GRPC requests at port 8005, allowed port range is [8000, 8002]"},
		{func(c *Config) { c.SageMaker.Safe = &PortRange{9000, 9001} }, ""},
		{func(c *Config) { c.SageMaker.Allow = true; c.SageMaker.Safe = &PortRange{8000, 8002} }, ""},
		{func(c *Config) { c.SageMaker.Allow, c.Vertex.Allow = true, true },
			"failed to start Vertex AI service: API_PREDICT_ROUTE is not defined for Vertex AI endpoint\nThe server cannot listen to SageMaker requests and Vertex AI requests at the same address and port 0.0.0.0:8080"},
		{func(c *Config) { c.Vertex.Allow, c.Vertex.Predict = true, "/p" }, "failed to start Vertex AI service: AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"},
		{func(c *Config) { c.SageMaker.Allow, c.SageMaker.Call = true, "x" },
			"failed to start Sagemaker service: SAGEMAKER_TRITON_INFERENCE_TYPE is 'x': must be one of: infer, generate, generate_stream"},
	} {
		c := DefaultConfig()
		c.Metrics.Address = c.HTTP.Address
		row.set(&c)
		got := ""
		if err := c.validatePlatforms(); err != nil {
			got = err.Error()
		}
		if got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}
