package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/repository"
)

const composeModel = `
backend: "compose"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: %d kind: KIND_CPU } ]
`

// repeats answers each request as often as its parameter iterations says.
const repeatsModel = `
backend: "identity"
max_batch_size: 1
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
`

// aroundModel is an ensemble of "one" alone.
const aroundModel = `
platform: "ensemble"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ { model_name: "one" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
`

// callModels are those of the tests of calls.
func callModels() map[string]string {
	return map[string]string{"one": fmt.Sprintf(composeModel, 1), "two": fmt.Sprintf(composeModel, 2), "id": pathModel,
		"kept": pathModel + "response_cache { enable: true }", "repeats": repeatsModel, "around": aroundModel}
}

type callResult struct {
	Status  int
	Reason  string
	Error   string `json:"error"`
	Outputs []struct {
		Shape []int64   `json:"shape"`
		Data  []float32 `json:"data"`
	} `json:"outputs"`
}

// askModel sends an inference with parameters, as JSON without its braces.
func askModel(t testing.TB, port int, model, params string, data ...float32) (r callResult) {
	t.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","data":%s}],"parameters":{%s}}`, len(data), text, params)
	answer, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/v2/models/%s/infer", port, model), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		t.Fatalf("%v: %q", err, raw)
	}
	r.Status, r.Reason = answer.StatusCode, answer.Header.Get("x-sluice-reason")
	return r
}

func wantAnswer(t *testing.T, r callResult, want ...float32) {
	t.Helper()
	if r.Status != 200 || len(r.Outputs) != 1 || fmt.Sprint(r.Outputs[0].Data) != fmt.Sprint(want) {
		t.Errorf("got %+v, want 200 with %v", r, want)
	}
}

func wantRefusal(t *testing.T, r callResult, status int, reason, text string) {
	t.Helper()
	if r.Status != status || r.Reason != reason || !strings.Contains(r.Error, text) {
		t.Errorf("got %+v, want %d for %q with %q", r, status, reason, text)
	}
}

func successes(t testing.TB, port int, model string) (n int) {
	t.Helper()
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v2/models/%s/stats", port, model))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var stats struct {
		ModelStats []struct {
			InferenceStats struct {
				Success struct{ Count int }
			} `json:"inference_stats"`
		} `json:"model_stats"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil || len(stats.ModelStats) != 1 {
		t.Fatalf("%v, %+v", err, stats)
	}
	return stats.ModelStats[0].InferenceStats.Success.Count
}

// Both ways of a call: through shared memory, and over the stream.
func eachCalls(t *testing.T, test func(t *testing.T, g *Gateway, p ports)) {
	for name, stream := range map[string]bool{"lane": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			g, p := startModels(t, callModels(), func(c *Config) {
				c.Workers.Stream = stream
				c.Repository.Mode, c.Repository.Startup = repository.Explicit, []string{"*"}
			})
			test(t, g, p)
		})
	}
}

// A model answers with what another one answered, whose statistics count the call.
func TestCall(t *testing.T) {
	eachCalls(t, func(t *testing.T, _ *Gateway, p ports) {
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id"`, 1, 2, 3), 1, 2, 3)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id", "version": "1", "times": 5`, 4), 4)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id", "alone": true`, 5), 5)
		large := make([]float32, 50_000)
		large[49_999] = 7
		if r := askModel(t, p.HTTP, "one", `"call": "id", "at_once": 8`, large...); r.Status != 200 || len(r.Outputs[0].Data) != len(large) || r.Outputs[0].Data[49_999] != 7 {
			t.Errorf("a large tensor came back as %d %s", r.Status, r.Error)
		}
		if n := successes(t, p.HTTP, "id"); n != 1+5+1+8 {
			t.Errorf("the called model counts %d requests, want 15", n)
		}
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "kept"`, 6), 6)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "kept"`, 6), 6)
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "nobody"`, 1), 404, "", "unknown model")
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "id", "version": "x"`, 1), 400, "", "is no number")
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "id", "fail": "no luck"`, 1), 500, "", "no luck")
	})
}

// What could only wait for itself fails at once; with a second instance it works. Models that
// call one another without end are refused at the bound.
func TestCallCycle(t *testing.T) {
	eachCalls(t, func(t *testing.T, _ *Gateway, p ports) {
		begin := time.Now()
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "one"`, 1), 503, "call_cycle", "all of its instances wait")
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("that took %v", took)
		}
		// "two" calls itself with its own parameters, so without end, and has two instances
		wantRefusal(t, askModel(t, p.HTTP, "two", `"call": "two"`, 1), 503, "call_cycle", "has 2")
		// through an ensemble, whose step gets the request's parameters
		wantRefusal(t, askModel(t, p.HTTP, "around", `"call": "around"`, 1), 503, "call_cycle", "has 1")
		wantAnswer(t, askModel(t, p.HTTP, "around", `"call": "id"`, 4), 4)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id"`, 1), 1)
	})
}

// Many answers arrive one by one, and half of them can be refused.
func TestCallStream(t *testing.T) {
	eachCalls(t, func(t *testing.T, _ *Gateway, p ports) {
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "repeats", "stream": true, "iterations": 50`, 1), 50)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "repeats", "stream": true, "iterations": 1000000, "enough": 3`, 1), 3)
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "repeats"`, 1), 501, "", "decoupled")
		// what a model leaves without a word is cancelled, and its instance is free again
		wantRefusal(t, askModel(t, p.HTTP, "one", `"call": "repeats", "stream": true, "iterations": 1000000, "panic": true`, 1), 500, "", "backend failed")
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "repeats", "stream": true, "iterations": 2`, 1), 2)
	})
}

// The end of a request is the end of what was called for it, and a call that comes later is
// refused.
func TestCallEnds(t *testing.T) {
	eachCalls(t, func(t *testing.T, _ *Gateway, p ports) {
		begin := time.Now()
		body := `{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}],"parameters":{"call":"id","delay_ms":60000}}`
		client := http.Client{Timeout: 300 * time.Millisecond}
		if _, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/v2/models/one/infer", p.HTTP), "application/json", strings.NewReader(body)); err == nil {
			t.Fatal("a call of a minute was answered")
		}
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id"`, 2), 2) // both instances are free again
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("that took %v", took)
		}
		wantAnswer(t, askModel(t, p.HTTP, "one", `"call": "id", "late": true`, 3), 0)
		wantRefusal(t, askModel(t, p.HTTP, "one", `"told": true`, 1), 500, "", "has ended")
	})
}

// The other kinds of calls.
func TestCallControl(t *testing.T) {
	eachCalls(t, func(t *testing.T, g *Gateway, p ports) {
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "ready", "call": "id"`, 1), 1)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "unload", "call": "id"`, 1), 1)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "ready", "call": "id", "alone": true`, 1), 0)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "load", "call": "id"`, 1), 1)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "ready", "call": "id"`, 1), 1)
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "metric", "call": "steps_total", "version": "a"`, 1), 1)
		wantAnswer(t, askModel(t, p.HTTP, "two", `"do": "metric", "call": "steps_total", "version": "a", "alone": true`, 1), 1)
		wantRefusal(t, askModel(t, p.HTTP, "two", `"do": "metric", "call": "nv_inference_count"`, 1), 400, "", "the server's own")
		wantAnswer(t, askModel(t, p.HTTP, "one", `"do": "log", "call": "a line of a model"`, 1), 1)
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", p.Metrics))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		raw, err := io.ReadAll(answer.Body)
		if err != nil || !bytes.Contains(raw, []byte(`steps_total{kind="a"} 2`)) {
			t.Errorf("%v: the model's counter is not among the metrics", err)
		}
	})
}
