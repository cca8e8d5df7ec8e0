package modelconfig

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// tensorText is an input or an output of one dimension.
func tensorText(kind, name, dims string) string {
	return kind + ` { name: "` + name + `" data_type: TYPE_FP32 dims: [ ` + dims + ` ] }` + "\n"
}

// stepText is a step; maps are "IN=A,IN2=B".
func stepText(model, in, out string) string {
	text := `step { model_name: "` + model + `" model_version: -1`
	for field, all := range map[string]string{"input_map": in, "output_map": out} {
		for pair := range strings.SplitSeq(all, ",") {
			if name, tensor, ok := strings.Cut(pair, "="); ok {
				text += ` ` + field + ` { key: "` + name + `" value: "` + tensor + `" }`
			}
		}
	}
	return text + " }\n"
}

func ensembleText(in, out string, steps ...string) string {
	text := "platform: \"ensemble\" max_batch_size: 4\n"
	for name := range strings.SplitSeq(in, ",") {
		text += tensorText("input", name, "-1")
	}
	for name := range strings.SplitSeq(out, ",") {
		text += tensorText("output", name, "-1")
	}
	return text + "ensemble_scheduling {\n" + strings.Join(steps, "") + "}\n"
}

func ensemble(t *testing.T, text string) (*modelconfig.ModelConfig, error) {
	t.Helper()
	cfg, src, err := Parse("c", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Folder: "e", Source: src, Backends: map[string]*worker.Backend{}}
	if _, err := Complete(cfg, nil, opts); err != nil {
		t.Fatal(err)
	}
	return cfg, Validate(cfg, opts)
}

// The texts are those of the real server for the same configs.
func TestDataFlow(t *testing.T) {
	a := stepText("a", "IN=IN", "OUT=OUT")
	for _, row := range []struct{ name, config, want string }{
		{"chain", ensembleText("IN", "OUT", stepText("a", "IN=IN", "OUT=M"), stepText("b", "IN=M", "OUT=OUT")), ""},
		{"backwards", ensembleText("IN", "OUT", stepText("b", "IN=M", "OUT=OUT"), stepText("a", "IN=IN", "OUT=M")), ""},
		{"output also read", ensembleText("IN", "OUT,M", stepText("a", "IN=IN", "OUT=M"), stepText("b", "IN=M", "OUT=OUT")), ""},
		{"input not used", ensembleText("IN,IN2", "OUT", a), "c:3:1: ensemble input 'IN2' for ensemble e' is not used"},
		{"output not used", ensembleText("IN", "OUT,OUT2", a), "c:4:1: ensemble output 'OUT2' for ensemble e' is not used"},
		{"twice", ensembleText("IN", "OUT", a, stepText("b", "IN=IN", "OUT=OUT")),
			"ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 1"},
		{"unused", ensembleText("IN", "OUT", stepText("a", "IN=IN", "OUT=OUT,OUT1=Y")), "ensemble tensor 'Y' is unused in ensemble 'e'"},
		{"circle beside", ensembleText("IN", "OUT", a, stepText("b", "IN=X", "OUT=X")), "ensemble tensor 'X' is unused in ensemble 'e'"},
		{"cycle", ensembleText("IN", "OUT", stepText("two", "IN0=IN,IN1=Z", "OUT0=OUT,OUT1=Y"), stepText("a", "IN=Y", "OUT=Z")),
			"output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'Y', is not connected"},
		{"not connected", ensembleText("IN", "OUT", stepText("two", "IN0=IN,IN1=Z", "OUT0=OUT")),
			"output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'Z', is not connected"},
		{"input written", ensembleText("IN,B", "OUT", stepText("a", "IN=IN", "OUT=B"), stepText("b", "IN=B", "OUT=OUT")),
			"ensemble tensor 'B' is an input of ensemble 'e' and written by step 0"},
		{"no map", ensembleText("IN", "OUT", `step { model_name: "a" }`), "must specify 'input_map' in step 0 of ensemble 'e'"},
	} {
		t.Run(row.name, func(t *testing.T) { wantFault(t, row.config, row.want) })
	}
}

func wantFault(t *testing.T, config, want string) {
	t.Helper()
	_, err := ensemble(t, config)
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want %s", err, want)
	case err != nil && infer.CodeOf(err) != infer.InvalidArg:
		t.Errorf("code %v", infer.CodeOf(err))
	}
}

// checked are the models that TestCheckEnsemble's steps run.
var checked = map[string]string{
	"a":    `name: "a" max_batch_size: 4 ` + tensorText("input", "IN", "-1") + tensorText("output", "OUT", "-1"),
	"flat": `name: "flat" ` + tensorText("input", "IN", "-1") + tensorText("output", "OUT", "-1"),
	"nb":   `name: "nb" ` + tensorText("input", "IN", "-1, -1") + tensorText("output", "OUT", "-1, -1"),
	"fix":  `name: "fix" max_batch_size: 2 ` + tensorText("input", "IN", "3") + tensorText("output", "OUT", "3"),
	"i32":  `name: "i32" max_batch_size: 4 input { name: "IN" data_type: TYPE_INT32 dims: -1 } output { name: "OUT" data_type: TYPE_INT32 dims: -1 }`,
	"two": `name: "two" max_batch_size: 4 ` + tensorText("input", "IN0", "-1") + `input { name: "IN1" data_type: TYPE_FP32 dims: -1 optional: true }` +
		tensorText("output", "OUT0", "-1") + tensorText("output", "OUT1", "-1"),
	"many": `name: "many" max_batch_size: 4 model_transaction_policy { decoupled: true } ` + tensorText("input", "IN", "-1") + tensorText("output", "OUT", "-1"),
}

// The texts are those of the real server for the same configs.
func TestCheckEnsemble(t *testing.T) {
	for _, row := range []struct {
		name, config, want string
		decoupled          bool
	}{
		{"chain", ensembleText("IN", "OUT", stepText("a", "IN=IN", "OUT=M"), stepText("two", "IN0=M", "OUT1=OUT")), "", false},
		{"without batch", ensembleText("IN", "OUT", stepText("flat", "IN=IN", "OUT=OUT")), "", false},
		{"expanded", ensembleText("IN", "OUT", stepText("nb", "IN=IN", "OUT=M"), stepText("a", "IN=M", "OUT=OUT")), "", false},
		{"unknown", ensembleText("IN", "OUT", stepText("nobody", "IN=IN", "OUT=OUT")), "", false},
		{"batch", ensembleText("IN", "OUT", stepText("fix", "IN=IN", "OUT=OUT")),
			"ensemble e allows maximum batch size 4, but it contains model fix which only allows maximum batch size to be 2", false},
		{"input", ensembleText("IN", "OUT", stepText("a", "NOPE=IN", "OUT=OUT")), "in ensemble e, ensemble tensor IN is mapping to non-existing input NOPE in model a", false},
		{"output", ensembleText("IN", "OUT", stepText("a", "IN=IN", "NOPE=OUT")), "in ensemble e, ensemble tensor OUT is mapped from non-existing output NOPE in model a", false},
		{"not mapped", ensembleText("IN", "OUT", stepText("two", "IN1=IN", "OUT0=OUT")), "in ensemble e, input IN0 in model two is not mapped to any ensemble tensors", false},
		{"datatype", ensembleText("IN", "OUT", stepText("a", "IN=IN", "OUT=M"), stepText("i32", "IN=M", "OUT=OUT")),
			"in ensemble e, ensemble tensor M: inconsistent data type: TYPE_FP32 is inferred from model a while TYPE_INT32 is inferred from model i32", false},
		{"shape", strings.ReplaceAll(strings.ReplaceAll(ensembleText("IN", "OUT", stepText("fix", "IN=IN", "OUT=OUT")), "[ -1 ]", "[ 4 ]"), "size: 4", "size: 2"),
			"in ensemble e, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model e while [-1,3] is inferred from model fix", false},
		{"decoupled", ensembleText("IN", "OUT", stepText("many", "IN=IN", "OUT=M"), stepText("a", "IN=M", "OUT=OUT")), "", true},
		{"mixed", ensembleText("IN", "OUT", stepText("many", "IN=IN", "OUT=M"), stepText("two", "IN0=M,IN1=IN", "OUT0=OUT")),
			"in ensemble e, step of model 'two' receives inputs originated from different decoupled models", true},
		{"mixed outputs", ensembleText("IN", "OUT,M", stepText("many", "IN=IN", "OUT=M"), stepText("many", "IN=IN", "OUT=OUT")),
			"in ensemble e, step of model 'e' receives inputs originated from different decoupled models", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			cfg, err := ensemble(t, row.config)
			if err != nil {
				t.Fatal(err)
			}
			decoupled, err := CheckEnsemble(cfg, func(s *modelconfig.ModelEnsembling_Step) *modelconfig.ModelConfig {
				text, ok := checked[s.ModelName]
				if !ok {
					return nil
				}
				m, _, err := Parse(s.ModelName, []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				return m
			})
			switch {
			case row.want == "" && err != nil, row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got %v, want %s", err, row.want)
			case decoupled != row.decoupled:
				t.Errorf("decoupled: %v", decoupled)
			}
		})
	}
}

func TestCircular(t *testing.T) {
	graph := map[string][]string{"a": {"b", "m"}, "b": {"c", "m"}, "c": {"m"}, "d": {"e"}, "e": {"d"}, "f": {"d"}, "self": {"m", "self"}}
	needs := func(k string) []string { return graph[k] }
	for start, want := range map[string]string{"a": "", "c": "", "m": "", "f": "",
		"d":    "circular dependency between ensembles: d -> ... -> e -> d",
		"self": "circular dependency between ensembles: self -> ... -> self -> self"} {
		got := ""
		if err := Circular(start, needs); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", start, got, want)
		}
	}
}
