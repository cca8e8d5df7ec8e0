package httpapi

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

func original(t *testing.T, name string) string {
	b, err := os.ReadFile("testdata/original/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func load[M proto.Message](t *testing.T, name string, m M) M {
	if err := protojson.Unmarshal([]byte(original(t, name)), m); err != nil {
		t.Fatal(name, err)
	}
	return m
}

// TestConfigPrintsAsOriginal reads recorded answers into our messages and prints them.
func TestConfigPrintsAsOriginal(t *testing.T) {
	for _, name := range []string{"rich.config.json", "seq.config.json"} {
		f := &fake{config: load(t, name, &modelconfig.ModelConfig{})}
		got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "GET", "/v2/models/two/config", "", nil)
		// two 64-bit fields are strings in the original, all others numbers
		want := strings.NewReplacer(`["4"]`, `[4]`, `["2"]`, `[2]`,
			`"parameters":{"a":{"string_value":"b"},"EXECUTION_ENV":{"string_value":""}}`, // no order there
			`"parameters":{"EXECUTION_ENV":{"string_value":""},"a":{"string_value":"b"}}`).Replace(original(t, name))
		if got.status != 200 || got.typ != typeJSON || got.body != want {
			t.Errorf("%s: got %d\n%s, want\n%s", name, got.status, got.body, want)
		}
	}
}

func TestControlAnswersAreTheOriginals(t *testing.T) {
	index := &inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{
		{Name: "bad", Version: "1", State: "UNAVAILABLE", Reason: "Invalid argument: unable to find backend library for backend " +
			"'nope', try specifying runtime on the model configuration."},
		{Name: "rich", Version: "1", State: "READY"}, {Name: "seq", Version: "1", State: "READY"}}}
	f := &fake{index: index, meta: load(t, "rich.metadata.json", &inference.ModelMetadataResponse{}),
		stats: load(t, "fixed.stats.json", &inference.ModelStatisticsResponse{})}
	a := newFakeAPI(f, APIConfig{})
	for _, c := range []struct{ method, path, file string }{
		{"GET", "/v2", "server.json"},
		{"GET", "/v2/models/two", "rich.metadata.json"},
		{"GET", "/v2/models/two/versions/1", "rich.metadata.json"},
		{"GET", "/v2/models/two/stats", "fixed.stats.json"},
		{"GET", "/v2/models/stats", "fixed.stats.json"},
		{"POST", "/v2/repository/index", "index.json"},
		{"POST", "/v2/repository/any/index", "index.json"},
		{"GET", "/v2/logging", "logging.json"},
	} {
		got := ask(t.Context(), a, c.method, c.path, "", nil)
		if want := original(t, c.file); got.status != 200 || got.typ != typeJSON || got.body != want {
			t.Errorf("%s: got %d\n%s, want\n%s", c.path, got.status, got.body, want)
		}
	}
	if o, c := f.opened.Load(), f.closed.Load(); o != 8 || c != o {
		t.Errorf("%d calls were admitted and %d ended", o, c)
	}
}

// errorCases are calls that fail, with the original's answers.
var errorCases = []struct {
	method, path, body string
	status             int
	text               string
}{
	{"GET", "/v2/", "", 404, "Not Found"},
	{"GET", "/", "", 404, "Not Found"},
	{"GET", "//v2", "", 404, "Not Found"},
	{"GET", "/v2/models", "", 404, "Not Found"},
	{"GET", "/v2/models/", "", 404, "Not Found"},
	{"GET", "/v2/models/two/", "", 404, "Not Found"},
	{"GET", "/v2/models/two/versions/", "", 404, "Not Found"},
	{"GET", "/v2/models/two/versions/x", "", 404, "Not Found"},
	{"GET", "/v2/models/two/versions/-1", "", 404, "Not Found"},
	{"GET", "/v2/models/two/foo", "", 404, "Not Found"},
	{"GET", "/v2/models/stats/", "", 404, "Not Found"},
	{"GET", "/v2/health", "", 404, "Not Found"},
	{"GET", "/v2/health/live/", "", 404, "Not Found"},
	{"POST", "/v2/repository/models/two/foo", "{}", 404, "Not Found"},
	{"POST", "/v2/systemsharedmemory/register", "{}", 400, "'region name' is necessary to register system shared memory region"},
	{"POST", "/v2/systemsharedmemory", "{}", 404, "Not Found"},
	{"GET", "/v2/models/two/infer", "", 405, "Method Not Allowed"},
	{"HEAD", "/v2/health/live", "", 405, "Method Not Allowed"},
	{"POST", "/v2", "{}", 405, "Method Not Allowed"},
	{"PUT", "/v2/logging", "", 405, "Method Not Allowed"},
	{"FOO", "/v2", "", 405, "Method Not Allowed"},
	{"GET", "/v2/repository/index", "", 405, "Method Not Allowed"},
	{"GET", "/v2/models/nope", "", 404, "Request for unknown model: 'nope' is not found"},
	{"GET", "/v2/models/n%6Fpe", "", 404, "Request for unknown model: 'nope' is not found"},
	{"GET", "/v2/models/a%2fb", "", 404, "Request for unknown model: 'a%2fb' is not found"},
	{"GET", "/v2/models/a%00b", "", 404, "Request for unknown model: 'a%00b' is not found"},
	{"GET", "/v2/models/%2e%2e", "", 404, "Request for unknown model: '%2e%2e' is not found"},
	{"GET", "/v2/models/%zz", "", 404, "Request for unknown model: '%zz' is not found"},
	{"GET", "/v2/models/nope/stats", "", 400, "requested model 'nope' is not available"},
	{"GET", "/v2/models/nope/ready", "", 400, "Model version not ready"},
	{"GET", "/v2/models/stats/ready", "", 400, "Model version not ready"},
	{"POST", "/v2/repository/index", `{"ready":1}`, 500, "attempt to access JSON non-boolean as boolean"},
	{"POST", "/v2/repository/index", "nope", 500, "failed to parse the request JSON buffer: Invalid value. at 1"},
	{"POST", "/v2/repository/r/models/two/load", "", 501, "'repository_name' specification is not supported"},
	{"POST", "/v2/logging", "", 500, "failed to parse the request JSON buffer: The document is empty. at 0"},
	{"POST", "/v2/logging", `{"log_info":1}`, 500, "attempt to access JSON non-boolean as boolean"},
	{"POST", "/v2/logging", `{"log_verbose_level":-1}`, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"},
	{"POST", "/v2/logging", `{"log_format":1}`, 500, "attempt to access JSON non-string as string"},
	{"POST", "/v2/logging", `{"log_file":"/tmp/x"}`, 501, "log file location can not be updated through network protocol"},
	{"GET", "/v2/models/two/versions/1/trace/setting", "", 404, "Not Found"},
	{"PUT", "/v2/trace/setting", "", 405, "Method Not Allowed"},
	{"POST", "/v2/trace/setting", "", 500, "failed to parse the request JSON buffer: The document is empty. at 0"},
	{"POST", "/v2/trace/setting", "{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"},
	{"POST", "/v2/trace/setting", `{"trace_rate":5}`, 500, "attempt to access JSON non-string as string"},
	{"POST", "/v2/trace/setting", `{"trace_count":["3"],"trace_level":"OFF"}`, 500, "attempt to access JSON non-array as array"},
	{"POST", "/v2/models/two/trace/setting", `{"trace_level":["OFF",1]}`, 500, "attempt to access JSON non-string as string"},
	// Not here yet.
	{"POST", "/v2/repository/models/nope/load", "", 404, "nope config <> file <> of 0"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":{"config":"{}","file:1/f":"aGVsbG8="}}`, 404, "two config <{}> file <hello> of 2"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":{"config":1}}`, 500, "attempt to access JSON non-string as string"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":[]}`, 500, "attempt to get members for non-object"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":null}`, 500, "attempt to get members for non-object"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":{"zz":"1"}}`, 500, "unexpected error on creating Triton parameter"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":{"file:1/f":"!"}}`, 400, "load parameter 'file:1/f' is no base64"},
	{"POST", "/v2/repository/models/two/load", `{"parameters":{"config":"{}"`, 500,
		"failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 28"},
	{"POST", "/v2/repository/models/two/unload", `{"parameters":{"unload_dependents":true}}`, 503, "two true"},
	{"POST", "/v2/repository/models/two/unload", `{"parameters":{"unload_dependents":1}}`, 500, "attempt to access JSON non-boolean as boolean"},
	{"GET", "/v2/systemsharedmemory/region/a/status", "", 404, "Unable to find system shared memory region: 'a'"},
	{"GET", "/v2/cudasharedmemory/region/a/status", "", 404, "Unable to find cuda shared memory region: 'a'"},
	{"POST", "/v2/systemsharedmemory/region/a/register", "{}", 400, "Shared memory register request has no 'key' field"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":"k"}`, 400, "Shared memory register request has no 'byte_size' field"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":5}`, 500, "attempt to access JSON non-string as string"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":"k","byte_size":18446744073709551616}`, 500,
		"attempt to access JSON non-unsigned-integer as unsigned-integer"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":"k","byte_size":18446744073709551615}`, 400,
		"failed to register shared memory region 'a': invalid args"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":"k","offset":18446744073709551615,"byte_size":1}`, 400,
		"failed to register shared memory region 'a': invalid args"},
	{"POST", "/v2/systemsharedmemory/region/a/register", `{"key":"/sluice_absent_test","byte_size":1}`, 400,
		"shared memory key '/sluice_absent_test' is reserved: keys must not begin with 'sluice_'"},
	{"POST", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"!"},"device_id":0,"byte_size":1}`, 400,
		"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"},
}

func TestErrors(t *testing.T) {
	a := newFakeAPI(&fake{}, APIConfig{})
	for _, c := range errorCases {
		got := ask(t.Context(), a, c.method, c.path, c.body, nil)
		if want := `{"error":"` + c.text + `"}`; got.status != c.status || got.body != want || got.typ != typeJSON {
			t.Errorf("%s %s %s: got %d %s %s, want %d %s", c.method, c.path, c.body, got.status, got.typ, got.body, c.status, want)
		}
	}
}

func TestHealth(t *testing.T) {
	f := &fake{}
	a := newFakeAPI(f, APIConfig{})
	for _, path := range []string{"/v2/health/live", "/v2/health/ready", "/v2/models/two/ready", "/v2/models/two/versions/1/ready"} {
		if got := ask(t.Context(), a, "GET", path, "", nil); got.status != 200 || got.body != "" || got.typ != "text/plain" {
			t.Errorf("%s: got %+v", path, got)
		}
	}
	f.down = true
	for _, path := range []string{"/v2/health/live", "/v2/health/ready"} {
		if got := ask(t.Context(), a, "GET", path, "", nil); got.status != 400 || got.body != "" {
			t.Errorf("%s: got %+v", path, got)
		}
	}
}

// A server whose workers are started again is not ready, and degraded for who asks so.
func TestReadinessOfTheDegraded(t *testing.T) {
	a := newFakeAPI(&fake{degraded: true}, APIConfig{})
	for _, c := range []struct {
		accept, degraded string
		status           int
	}{{"", "", 400}, {"accept", "true", 200}, {"else", "", 400}} {
		got := ask(t.Context(), a, "GET", "/v2/health/ready", "", map[string]string{"X-Sluice-Degraded": c.accept})
		if got.status != c.status || got.fields["X-Envoy-Degraded"] != c.degraded || got.body != "" {
			t.Errorf("%q: got %+v, want %d and %q", c.accept, got, c.status, c.degraded)
		}
	}
	a = newFakeAPI(&fake{down: true}, APIConfig{})
	if got := ask(t.Context(), a, "GET", "/v2/health/ready", "", map[string]string{"X-Sluice-Degraded": "accept"}); got.status != 400 {
		t.Errorf("not ready for another reason: got %+v", got)
	}
}

// A null changes nothing, as in the original.
func TestLogSettingsOfNull(t *testing.T) {
	f := &fake{}
	got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/logging",
		`{"log_file":null,"log_info":null,"log_verbose_level":null,"log_format":null,"log_error":false}`, nil)
	if got.status != 200 {
		t.Fatalf("got %+v", got)
	}
	if s := f.settings.GetSettings(); len(s) != 1 || s["log_error"] == nil {
		t.Errorf("got %v, want log_error alone", s)
	}
}

func TestLogSettingsReachControl(t *testing.T) {
	f := &fake{}
	got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/logging",
		`{"log_info":false,"log_verbose_level":2,"log_format":"ISO8601","nope":[1]}`, nil)
	if got.status != 200 || got.body != original(t, "logging.json") {
		t.Fatalf("got %+v", got)
	}
	s := f.settings.GetSettings()
	if len(s) != 3 || s["log_info"].GetBoolParam() || s["log_verbose_level"].GetUint32Param() != 2 ||
		s["log_format"].GetStringParam() != "ISO8601" {
		t.Errorf("got %v", s)
	}
}

func TestLoadAndUnloadAnswerNothing(t *testing.T) {
	a := newFakeAPI(&fake{}, APIConfig{})
	for _, c := range []struct{ path, body string }{{"load", ""}, {"load", "{}"}, {"load", "[]"}, {"load", `{"x":1,"parameters":{}}`},
		{"load", `{"parameters":{}}` + strings.Repeat(" ", 2<<20)}, {"unload", ""}, {"unload", `{"parameters":{"x":1}}`}} {
		if got := ask(t.Context(), a, "POST", "/v2/repository/models/two/"+c.path, c.body, nil); got.status != 200 || got.body != "" {
			t.Errorf("%s of %d bytes: got %d %q", c.path, len(c.body), got.status, got.body)
		}
	}
}
