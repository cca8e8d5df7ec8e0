package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/repository"
)

const oneTensor = `backend: "identity" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
`

const twoTensors = `backend: "identity" max_batch_size: 4
input { name: "IN0" data_type: TYPE_FP32 dims: [ -1 ] } input { name: "IN1" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT0" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUT1" data_type: TYPE_FP32 dims: [ -1 ] }
`

// ensembleOf is an ensemble from IN to OUT.
func ensembleOf(steps ...string) string {
	return `platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
` + strings.Join(steps, "\n") + "\n}\n"
}

func stepOf(model, version string, maps ...string) string {
	text := `step { model_name: "` + model + `" model_version: ` + version
	for _, m := range maps {
		field, pair, _ := strings.Cut(m, " ")
		name, tensor, _ := strings.Cut(pair, "=")
		text += ` ` + field + ` { key: "` + name + `" value: "` + tensor + `" }`
	}
	return text + " }"
}

func TestEnsembles(t *testing.T) {
	dir := t.TempDir()
	for name, config := range map[string]string{
		"a": oneTensor, "two": twoTensors, "int": strings.ReplaceAll(oneTensor, "FP32", "INT32"),
		"graph": ensembleOf(stepOf("a", "-1", "input_map IN=IN", "output_map OUT=L"), stepOf("a", "1", "input_map IN=IN", "output_map OUT=R"),
			stepOf("two", "-1", "input_map IN0=L", "input_map IN1=R", "output_map OUT0=MID"), stepOf("a", "-1", "input_map IN=MID", "output_map OUT=OUT")),
		"type":    ensembleOf(stepOf("int", "-1", "input_map IN=IN", "output_map OUT=OUT")),
		"version": ensembleOf(stepOf("a", "7", "input_map IN=IN", "output_map OUT=OUT")),
		"nobody":  ensembleOf(stepOf("missing", "-1", "input_map IN=IN", "output_map OUT=OUT")),
		"wrong":   ensembleOf(stepOf("bad", "-1", "input_map IN=IN", "output_map OUT=OUT")),
		"bad":     "max_batch: 1",
		"itself":  ensembleOf(stepOf("itself", "-1", "input_map IN=IN", "output_map OUT=OUT")),
	} {
		if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{}
	models := map[string]Model{}
	for _, m := range s.Check(t.Context(), repository.Config{Known: known(t), Paths: []string{dir}}, nil).Models {
		models[m.Name] = m
	}
	for name, want := range map[string]string{"graph": "", "a": "",
		"type": "type/config.pbtxt:4:44: in ensemble type, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model type " +
			"while TYPE_INT32 is inferred from model int",
		"version": "version/config.pbtxt:4:24: ensemble 'version' depends on 'a' whose required version 7 is not loaded.",
		"nobody":  "nobody/config.pbtxt:4:8: ensemble nobody contains models that are not available or ambiguous: missing",
		"wrong":   "wrong/config.pbtxt:4:8: ensemble 'wrong' depends on 'bad' which is not valid",
		"itself":  "circular dependency between ensembles: itself -> ... -> itself -> itself",
	} {
		got := ""
		if f := models[name].Faults; len(f) > 0 {
			got = f[0].String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	const drawing = `
○   IN  FP32 [-1]  input
├────▶ step 0: a (IN), beside step 1
│ ○ L  FP32 [-1]  from OUT
└─┼──▶ step 1: a (IN), version 1, beside step 0
○ │ R  FP32 [-1]  from OUT
└─┴──▶ step 2: two (IN0 = L, IN1 = R)
○   MID  FP32 [-1]  from OUT0
└────▶ step 3: a (IN = MID)
○   OUT  FP32 [-1]  output`
	if got := "\n" + strings.Join(models["graph"].Explained[0].Lines, "\n"); got != drawing {
		t.Errorf("got%s\nwant%s", got, drawing)
	}
}

// With namespaces a step means the model of the repository that it names, or of its own.
func TestEnsemblesOfNamespaces(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	step := stepOf("m", "-1", "input_map IN=IN", "output_map OUT=OUT")
	named := strings.Replace(ensembleOf(step), `model_name: "m"`, `model_name: "m" model_namespace: "`+one+`"`, 1)
	for path, config := range map[string]string{
		one + "/m": oneTensor, two + "/m": strings.ReplaceAll(oneTensor, "FP32", "INT32"), one + "/own": ensembleOf(step),
		two + "/named": named, two + "/unfit": ensembleOf(step),
	} {
		if err := os.MkdirAll(filepath.Join(path, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := text(t, Check(t.Context(), repository.Config{Known: known(t), Paths: []string{one, two}, Namespacing: true}, nil))
	for _, want := range []string{"ok     m in " + one, "ok     m in " + two, "ok     own in " + one, "ok     named in " + two, "WRONG  unfit in " + two,
		"TYPE_FP32 is inferred from model unfit while TYPE_INT32 is inferred from model m"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
}
