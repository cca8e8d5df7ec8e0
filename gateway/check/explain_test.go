package check

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/repository"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

var update = flag.Bool("update", false, "rewrite testdata")

// flagsOf are servers by the name that a case may give in brackets.
func flagsOf(name string) Server {
	switch name {
	case "cache":
		return Server{Cache: true}
	case "rate limit":
		return Server{RateLimit: true, Resources: []ratelimit.Resource{{Name: "r1", Count: 4, Device: ratelimit.Every}, {Name: "R1", Count: 6, Device: 2}}}
	}
	return Server{}
}

// TestExplain runs testdata/explain.txt: after each `== name [flags]` a config, and
// behind the line -- what is said of it.
func TestExplain(t *testing.T) {
	const path = "testdata/explain.txt"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, c := range strings.Split(string(data), "== ")[1:] {
		name, rest, _ := strings.Cut(c, "\n")
		config, _, _ := strings.Cut(rest, "\n--\n")
		cfg, _, err := modelconfig.Parse("config.pbtxt", []byte(config))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, flags, _ := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		m := Model{Name: "m", Explained: Explain(cfg, flagsOf(flags))}
		var b strings.Builder
		m.render(&b)
		_, said, _ := strings.Cut(b.String(), "\n")
		out.WriteString("== " + name + "\n" + config + "\n--\n" + said)
	}
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(data) {
		t.Errorf("%s: got\n%s", path, out.String())
	}
}

// An empty config and one of odd values say something, and nothing panics.
func TestExplainOddConfigs(t *testing.T) {
	odd := &configpb.ModelConfig{
		ModelWarmup:   []*configpb.ModelWarmup{{}, {Inputs: map[string]*configpb.ModelWarmup_Input{"x": nil}}},
		BatchInput:    []*configpb.BatchInput{{TargetName: []string{"x"}, Kind: 99}},
		InstanceGroup: []*configpb.ModelInstanceGroup{nil, {RateLimiter: &configpb.ModelRateLimiter{Resources: []*configpb.ModelRateLimiter_Resource{nil}}}},
		SchedulingChoice: &configpb.ModelConfig_SequenceBatching{SequenceBatching: &configpb.ModelSequenceBatching{
			MaxSequenceIdleMicroseconds: 1 << 63, ControlInput: []*configpb.ModelSequenceBatching_ControlInput{{Control: []*configpb.ModelSequenceBatching_Control{{Kind: 9}}}}}},
	}
	for _, cfg := range []*configpb.ModelConfig{nil, {}, odd, {SchedulingChoice: &configpb.ModelConfig_EnsembleScheduling{}}} {
		for _, n := range Explain(cfg, Server{Cache: true, RateLimit: true}) {
			if n.Title == "" || len(n.Lines) == 0 || slices.Contains(n.Lines, "") {
				t.Errorf("got %+v", n)
			}
		}
	}
}

// What is explained is the completed config, and only of models that would be loaded.
func TestExplainedInReport(t *testing.T) {
	files := map[string]string{
		"a/config.pbtxt": `platform: "onnxruntime_onnx" max_batch_size: 8 dynamic_batching { }`, "a/1/model.onnx": "",
		"b/config.pbtxt": `platform: "onnxruntime_onnx" response_cache { enable: true } bad: 1`, "b/1/model.onnx": "",
	}
	r := (&Server{}).Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, files)}}, workers{})
	got := text(t, r)
	for _, want := range []string{"batching   requests that wait leave together when an instance is free, up to 8 rows\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
	if strings.Contains(got, "nothing is cached") {
		t.Errorf("a config with a fault is explained:\n%s", got)
	}
}

// A model that needs more of a resource than there is would not be loaded.
func TestTooLittleOfAResource(t *testing.T) {
	files := map[string]string{
		"a/config.pbtxt": `platform: "onnxruntime_onnx" instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 3 } } }`, "a/1/model.onnx": "",
	}
	for most, ok := range map[int64]bool{2: false, 3: true} {
		s := &Server{RateLimit: true, Resources: []ratelimit.Resource{{Name: "R", Count: most, Device: ratelimit.Every}}}
		r := s.Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, files)}}, workers{})
		if r.OK() != ok {
			t.Errorf("%d there: got\n%s", most, text(t, r))
		}
	}
}

// A time to live that is none is a fault where there is a cache, as at a load.
func TestTimeToLive(t *testing.T) {
	const config = `platform: "onnxruntime_onnx" response_cache { enable: true } parameters { key: "response_cache_ttl" value { string_value: "VALUE" } }`
	for value, ok := range map[string]bool{"soon": false, "30": true, "1h30m": true} {
		files := map[string]string{"a/config.pbtxt": strings.ReplaceAll(config, "VALUE", value), "a/1/model.onnx": ""}
		for _, on := range []bool{false, true} {
			r := (&Server{Cache: on}).Check(t.Context(), repository.Config{Known: known(t), Paths: []string{tree(t, files)}}, workers{})
			if r.OK() != (ok || !on) {
				t.Errorf("%s, cache %v: got\n%s", value, on, text(t, r))
			}
		}
	}
}
