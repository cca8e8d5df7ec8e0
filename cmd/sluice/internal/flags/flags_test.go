package flags

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func none(string) (string, bool) { return "", false }

func parse(t *testing.T, args ...string) *Serve {
	t.Helper()
	s, err := ParseServe(append([]string{"--model-repository=/m"}, args...), none)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return s
}

func TestBothForms(t *testing.T) {
	s := parse(t, "--http-port", "18000", "--grpc-port=18001", "--exit-on-error", "false", "--allow-metrics=0",
		"--disable-auto-complete-config", "--model-store=/n", "--exit-timeout-secs=5", "--strict-readiness", "--cpu-wake-latency-us=20")
	if none := parse(t); s.WakeLatency != 20*time.Microsecond || none.WakeLatency >= 0 {
		t.Errorf("cores wake within %v, and within %v where nobody asked", s.WakeLatency, none.WakeLatency)
	}
	c := s.Config
	if c.HTTP.Port != 18000 || c.GRPC.Port != 18001 || c.Repository.ExitOnError || c.Metrics.Allow || !c.Repository.NoAutoComplete ||
		len(c.Repository.Paths) != 2 || c.ExitTimeout != 5*time.Second || !c.Repository.StrictReadiness {
		t.Errorf("got %+v", c)
	}
	if c.Metrics.Address != "0.0.0.0" {
		t.Errorf("metrics address %q, want that of HTTP", c.Metrics.Address)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--htp-port=1"}, "unknown flag --htp-port; did you mean --http-port?"},
		{[]string{"--foo"}, "unknown flag --foo (--help lists them)"},
		{[]string{"-x"}, "unknown flag -x (--help lists them)"},
		{[]string{"-model-repository=/m"}, "unknown flag -model-repository; did you mean --model-repository?"},
		{[]string{"-http-port", "1"}, "unknown flag -http-port; did you mean --http-port?"},
		{[]string{"--prot-file=x"}, "unknown flag --prot-file; did you mean --port-file?"},
		{[]string{"--http_port=1"}, "unknown flag --http_port; did you mean --http-port?"},
		{[]string{"--http-port"}, "--http-port needs a value"},
		{[]string{"--http-port=x"}, "--http-port: 'x' is not an integer"},
		{[]string{"--http-port=70000"}, "70000 is not in [-1, 65535]"},
		{[]string{"--http-port=1", "--http-port=2"}, "--http-port is given more than once"},
		{[]string{"--exit-on-error=maybe"}, "'maybe' is not a boolean"},
		{[]string{"--rate-limit=on"}, "--rate-limit: 'on' is not one of off, execution_count"},
		{[]string{"--rate-limit-resource=R"}, "--rate-limit-resource: 'R' is not <resource_name>:<count>"},
		{[]string{"--rate-limit-resource=R:1:0:0"}, "'R:1:0:0' is not <resource_name>:<count>"},
		{[]string{"--rate-limit-resource=R:-1"}, "the count '-1' is not an integer"},
		{[]string{"--rate-limit-resource=R:1:-2"}, "the device '-2' is not a number"},
		{[]string{"--model-control-mode=klingon"}, "'klingon' is not one of none, poll, explicit"},
		{[]string{"--load-model=a"}, "use of '--load-model' requires setting '--model-control-mode=explicit' as well"},
		{[]string{"--model-control-mode=explicit", "--load-model=a", "--load-model=*"}, "Wildcard model name '*' must be the ONLY startup model"},
		{[]string{"--repository-poll-secs=x"}, "'x' is not an integer"},
		{[]string{"--model-config-name="}, "'' is no name of a configuration"},
		{[]string{"--model-config-name=../x"}, "'../x' is no name of a configuration"},
		{[]string{"--model-load-gpu-limit=0:1.5"}, "expects limit fraction to be in range [0.0, 1.0], got 1.5"},
		{[]string{"--model-load-gpu-limit=x"}, "'x' is not <device id>:<fraction>"},
		{[]string{"--cuda-memory-pool-byte-size=0:-1"}, "'0:-1' is not <device id>:<bytes>"},
		{[]string{"--cuda-memory-pool-byte-size=67108864"}, "'67108864' is not <device id>:<bytes>"},
		{[]string{"--model-repository=s3://"}, "No bucket name found in path: s3://"},
		{[]string{"--http-header-forward-pattern=("}, "--http-header-forward-pattern: error parsing regexp"},
		{[]string{"--grpc-use-ssl=true"}, "--grpc-use-ssl needs --grpc-server-cert"},
		{[]string{"models"}, "'models' is not a flag"},
		{[]string{"--metrics-config=x=y"}, "no setting 'x'"},
		{[]string{"--client-shm-prefix=a/b"}, "'a/b' is no beginning of a name"},
		{[]string{"--client-shm-prefix=a_{principal}"}, "'a_{principal}': behind {principal} must stand a character"},
		{[]string{"--client-shm-prefix=a_{tenant}_"}, "'a_{tenant}_': {principal} may stand in it once"},
		{[]string{"--client-shm-prefix=a_", "--client-shm-prefix=a_{principal}_"}, "what stands before {principal} must differ"},
		{[]string{"--worker-processes=mine"}, "'mine' is not [BACKEND=]shared, backend or model"},
		{[]string{"--worker-processes==model"}, "'=model' is not [BACKEND=]shared"},
		{[]string{"--worker-process-limit=0"}, "0 is not in [1, 4096]"},
		{[]string{"--worker-wait-secs=0"}, "0 is not in [1, 31622400]"},
		{[]string{"--backend-config=onnxruntime"}, "is not <backend>,<setting>=<value>"},
	} {
		_, err := ParseServe(append([]string{"--model-repository=/m"}, c.args...), none)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q in it", c.args, err, c.want)
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := ParseServe([]string{"--http-port=x", "--grpc-port=y"}, none)
	for _, want := range []string{"--http-port", "--grpc-port"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s in it", err, want)
		}
	}
	if _, err = ParseServe(nil, none); err == nil || !strings.Contains(err.Error(), "--model-repository must be specified") {
		t.Errorf("no repository: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"SLUICE_HTTP_PORT": "1", "SLUICE_GRPC_PORT": "2", "SLUICE_MODEL_REPOSITORY": "/a;/b"}[name]
		return v, ok
	}
	s, err := ParseServe([]string{"--grpc-port=3"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.HTTP.Port != 1 || s.Config.GRPC.Port != 3 || len(s.Config.Repository.Paths) != 2 {
		t.Errorf("got http %d grpc %d paths %q", s.Config.HTTP.Port, s.Config.GRPC.Port, s.Config.Repository.Paths)
	}
}

// Every flag of the original's --help must be known.
func TestOriginalFlagsAreKnown(t *testing.T) {
	known := map[string]bool{}
	newServe().table().each(func(f *flag) { known[f.name] = true })
	for _, name := range strings.Fields(originalFlags) {
		if !known[name] {
			t.Errorf("flag --%s of the original is not known", name)
		}
	}
}

func TestTuningFlagsAreNoticed(t *testing.T) {
	if s := parse(t, "--http-thread-count=8"); len(s.Notices) != 1 {
		t.Errorf("got notices %q", s.Notices)
	}
}

func TestCertificateWithoutTLSIsNoticed(t *testing.T) {
	if s := parse(t, "--grpc-server-cert=/c", "--grpc-server-key=/k"); len(s.Notices) != 1 || s.Config.GRPC.TLS.Cert != "" {
		t.Errorf("got notices %q, files %+v", s.Notices, s.Config.GRPC.TLS)
	}
}

func TestHelp(t *testing.T) {
	if s, err := ParseServe([]string{"--help"}, none); err != nil || !s.Help {
		t.Errorf("--help: %v, %v", s.Help, err)
	}
	if s, err := ParseServe([]string{"-h"}, none); err != nil || !s.Help {
		t.Errorf("-h: %v, %v", s.Help, err)
	}
	var out bytes.Buffer
	if err := Usage(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nHTTP:\n", "  --http-port <integer>  (default 8000)\n", "Serve HTTP.", "Serve gRPC.", "SLUICE_FLAG"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q", want)
		}
	}
}

func TestCheckArguments(t *testing.T) {
	s, err := ParseCheck([]string{"/a", "--disable-auto-complete-config", "/b"}, none)
	if err != nil || len(s.Config.Repository.Paths) != 2 || !s.Config.Repository.NoAutoComplete {
		t.Errorf("got %+v, %v", s.Config.Repository, err)
	}
	if s, err = ParseCheck(nil, none); err != nil || !s.Help {
		t.Errorf("without arguments: help %v, %v", s.Help, err)
	}
}

const originalFlags = `help id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-store
model-repository exit-on-error disable-auto-complete-config strict-readiness model-control-mode repository-poll-secs
load-model model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access
allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count http-restricted-api
http-max-input-size allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern
grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual
grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time
grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
grpc-max-connection-age-grace grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range
sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config
backend-directory backend-config repoagent-directory cache-config cache-directory rate-limit rate-limit-resource
pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size min-supported-compute-capability
buffer-manager-thread-count host-policy model-load-gpu-limit allow-client-shm strict-model-config
response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency`

func TestDeviceMemory(t *testing.T) {
	s := parse(t, "--cuda-memory-pool-byte-size=0:67108864", "--cuda-memory-pool-byte-size=1:0")
	if got := s.Config.Workers.DeviceMemory; len(got) != 2 || got[0] != 64<<20 || got[1] != 0 {
		t.Errorf("got %v", got)
	}
}

func TestRateLimiter(t *testing.T) {
	s, err := ParseServe([]string{"--model-repository=/m", "--rate-limit=EXECUTION_COUNT", "--rate-limit-resource=R1:4",
		"--rate-limit-resource=r1:3", "--rate-limit-resource=R1:8:1"}, none)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Config.RateLimit); got != "{true [{r1 3 -1} {r1 8 1}]}" {
		t.Errorf("got %s", got)
	}
}

func TestWorkerProcesses(t *testing.T) {
	w := parse(t, "--worker-processes=backend", "--worker-processes=python=model", "--worker-process-limit=3", "--worker-wait-secs=5").Config.Workers
	if len(w.Processes) != 2 || w.Processes[""] != "backend" || w.Processes["python"] != "model" || w.ProcessLimit != 3 || w.Wait != 5*time.Second {
		t.Errorf("got %+v", w)
	}
	if w := parse(t).Config.Workers; w.Processes != nil || w.ProcessLimit != 64 || w.Wait != 30*time.Second {
		t.Errorf("without flags: %+v", w)
	}
}
