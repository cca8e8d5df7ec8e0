package flags

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway"
)

func TestPlatforms(t *testing.T) {
	s, err := ParseServe([]string{"--model-repository=/m", "--allow-sagemaker=true", "--sagemaker-port", "9000", "--sagemaker-safe-port-range=8000-8100",
		"--sagemaker-thread-count=4", "--allow-http=false", "--model-namespacing=true"},
		environment(map[string]string{"SAGEMAKER_TRITON_PING_MODE": "live", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "net", "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"}))
	if err != nil {
		t.Fatal(err)
	}
	c := &s.Config.SageMaker
	if !c.Allow || c.Port != 9000 || *c.Safe != (gateway.PortRange{Low: 8000, High: 8100}) || !c.Live || c.Model != "net" || c.Call != "generate" || c.Root != "/opt/ml/models" {
		t.Errorf("got %+v", c)
	}
	if len(s.Notices) != 1 || !strings.Contains(s.Notices[0], "sagemaker-thread-count") {
		t.Errorf("notices %q", s.Notices)
	}
}

// TestVertexEnvironment: what AIP_… says counts until a flag says otherwise.
func TestVertexEnvironment(t *testing.T) {
	aip := map[string]string{"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h", "AIP_HTTP_PORT": "7080", "AIP_STORAGE_URI": "/uri"}
	s, err := ParseServe(nil, environment(aip))
	if err != nil {
		t.Fatal(err)
	}
	c := &s.Config
	if !c.Vertex.Allow || c.HTTP.Allow || c.GRPC.Allow || c.Vertex.Port != 7080 || c.Vertex.Predict != "/p" || c.Vertex.Health != "/h" ||
		strings.Join(c.Repository.Paths, " ") != "/uri" {
		t.Errorf("got %+v, http %t, grpc %t, %q", c.Vertex, c.HTTP.Allow, c.GRPC.Allow, c.Repository.Paths)
	}
	s, err = ParseServe([]string{"--allow-http=true", "--vertex-ai-port=7081", "--vertex-ai-default-model=net", "--model-repository=/m"}, environment(aip))
	if err != nil {
		t.Fatal(err)
	}
	if c := &s.Config; !c.HTTP.Allow || c.GRPC.Allow || c.Vertex.Port != 7081 || c.Vertex.Default != "net" || strings.Join(c.Repository.Paths, " ") != "/m" {
		t.Errorf("got %+v, http %t, %q", c.Vertex, c.HTTP.Allow, c.Repository.Paths)
	}
	if s, err = ParseServe([]string{"--model-repository=/m"}, environment(map[string]string{"AIP_PREDICT_ROUTE": "/p"})); err != nil || s.Config.Vertex.Allow || !s.Config.HTTP.Allow {
		t.Errorf("without AIP_MODE: %v, %+v", err, s.Config.Vertex)
	}
}

// TestCheckReadsThePlatforms: what serves also passes the check, in the same environment.
func TestCheckReadsThePlatforms(t *testing.T) {
	env := environment(map[string]string{"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h", "AIP_HTTP_PORT": "7080"})
	s, err := ParseCheck([]string{"--allow-vertex-ai=true", "/m"}, env)
	if err != nil || s.Config.Vertex.Predict != "/p" || s.Config.Vertex.Port != 7080 {
		t.Errorf("%v, %+v", err, s.Config.Vertex)
	}
}

func TestPlatformFaults(t *testing.T) {
	for _, row := range []struct {
		arg, want string
		env       map[string]string
	}{
		{"--allow-vertex-ai=true", "API_PREDICT_ROUTE is not defined for Vertex AI endpoint", nil},
		{"--sagemaker-safe-port-range=80", "'80' is not <low port>-<high port>", nil},
		{"--sagemaker-safe-port-range=90-80", "'90-80' is not <low port>-<high port>", nil},
		{"--allow-sagemaker=true", "must be one of: infer, generate, generate_stream", map[string]string{"SAGEMAKER_TRITON_INFERENCE_TYPE": "chat"}},
		{"--allow-sagemaker=true", "AIP_HTTP_PORT: 'x' is not an integer", map[string]string{"AIP_HTTP_PORT": "x"}},
	} {
		_, err := ParseServe([]string{"--model-repository=/m", row.arg}, environment(row.env))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", row.arg, err, row.want)
		}
	}
}

func environment(of map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := of[name]; return v, ok }
}
