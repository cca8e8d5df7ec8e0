//go:build cgo

package fil

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

func TestMain(m *testing.M) {
	if status, is := forest.Child(); is {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

func open(t testing.TB) backend.Backend {
	t.Helper()
	dir := os.Getenv("SLUICE_ENGINES")
	if dir == "" {
		t.Skip("SLUICE_ENGINES is not set: no treelite to test with (make test installs it)")
	}
	b, err := New(dir)(nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := b.Info().Unavailable; text != "" {
		t.Fatal(text)
	}
	return b
}

// golden is a model of testdata, rows, and what its own library answers to them. Source: testdata/make.py.
type golden struct {
	File        string
	Input, Want array
}

type array struct {
	Shape    []int64
	Datatype string
	Data     string
}

func (a array) tensor(t testing.TB, name string) infer.Tensor {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(a.Data)
	if err != nil {
		t.Fatal(err)
	}
	dt := infer.FP32
	if a.Datatype == "FP64" {
		dt = infer.FP64
	}
	return infer.Tensor{Name: name, Datatype: dt, Shape: a.Shape, Data: data}
}

func goldens(t testing.TB) map[string]golden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]golden{}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// spec is a model of testdata with a config in text, to which its patch is added where complete is true.
func spec(t testing.TB, file, config string) backend.Spec {
	t.Helper()
	cfg := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return backend.Spec{Name: "m", Version: 1, ModelDir: dir, ModelFile: filepath.Join(dir, file), Config: cfg, Instances: 1}
}

// config is one with tensors of these types and dims.
func config(in string, features int, out string, dims, more string) string {
	return fmt.Sprintf(`max_batch_size: 64
input { name: "input__0" data_type: TYPE_%s dims: [%d] }
output { name: "output__0" data_type: TYPE_%s dims: %s } %s`, in, features, out, dims, more)
}

func parameter(key, value string) string {
	return fmt.Sprintf(`parameters { key: %q value { string_value: %q } } `, key, value)
}

func TestSuite(t *testing.T) {
	all := goldens(t)
	proba := parameter("predict_proba", "true")
	models := map[string]backend.Spec{
		"xgb_regression":         spec(t, "regression.json", config("FP32", 6, "FP32", "[1]", "")),
		"xgb_multi":              spec(t, "multi.json", config("FP32", 6, "FP32", "[3]", proba+parameter("model_type", "xgboost_json"))),
		"xgb_binary":             spec(t, "binary.ubj", config("FP32", 6, "FP32", "[1]", proba+parameter("threshold", "0.2"))),
		"xgb_targets":            spec(t, "targets.json", config("FP32", 6, "FP32", "[-1]", parameter("is_classifier", "false"))),
		"xgb_legacy":             spec(t, "xgboost.model", config("FP32", 6, "FP32", "[1]", parameter("is_classifier", "false"))),
		"lgb_multi":              spec(t, "multi.txt", config("FP64", 6, "FP64", "[3, 1]", proba+parameter("cpu_nthread", "-1"))),
		"skl_forest_regression":  spec(t, "forest_regression.tl", config("FP64", 6, "FP64", "[1]", "")),
		"skl_extra":              spec(t, "extra.tl", config("FP64", 6, "FP64", "[2]", proba)),
		"lgb_regression without": spec(t, "regression.txt", strings.Replace(strings.Replace(config("FP64", 6, "FP64", "[-1, 1]", ""), "64", "0", 1), "[6]", "[-1, 6]", 1)),
	}
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		s := backendtest.Subject{Backend: open(t)}
		for name, sp := range models {
			c := all[strings.Fields(name)[0]]
			sp.Name = name
			m := backendtest.Model{Spec: sp, Rows: int(sp.Config.MaxBatchSize), Inputs: []infer.Tensor{c.Input.tensor(t, inputName)},
				Want: []infer.Tensor{c.Want.tensor(t, outputName)}}
			if m.Rows > 0 {
				m.Rows = int(c.Input.Shape[0])
			}
			if name == "lgb_multi" {
				m.Want[0].Shape = append(slices.Clone(m.Want[0].Shape), 1)
			}
			s.Models = append(s.Models, m)
		}
		for name, config := range refusedConfigs {
			sp := spec(t, "multi.json", config)
			sp.Name = name
			s.Refused = append(s.Refused, sp)
		}
		return s
	})
}

var refusedConfigs = map[string]string{
	"has 6 features, and the dims of 'input__0' are [7]": config("FP32", 7, "FP32", "[1]", ""),
	"of this classifier has 1 values, and the dims":      config("FP32", 6, "FP32", "[3]", ""),
	"of this classifier has 3 values, and the dims":      config("FP32", 6, "FP32", "[1]", parameter("predict_proba", "true")),
	"one of them at most may be -1":                      config("FP32", 6, "FP32", "[-1, -1]", ""),
	"which is too much":                                  config("FP32", 6, "FP32", "[9999999, 9999999]", ""),
	"are TYPE_FP32 or TYPE_FP64":                         config("INT32", 6, "FP32", "[1]", ""),
	"one input, 'input__0', and one output":              strings.Replace(config("FP32", 6, "FP32", "[1]", ""), "input__0", "in", 1),
	"there are no SHAP values here":                      config("FP32", 6, "FP32", "[1]", `output { name: "treeshap_output" data_type: TYPE_FP32 dims: [3, 7] }`),
	"can't be ragged":                                    strings.Replace(config("FP32", 6, "FP32", "[1]", ""), "dims: [6]", "dims: [6] allow_ragged_batch: true", 1),
	"is 'xgb', and not one of xgboost_json, xgboost_ubj": config("FP32", 6, "FP32", "[1]", parameter("model_type", "xgb")),
	"parameter 'is_classifier': 'maybe' is neither":      config("FP32", 6, "FP32", "[1]", parameter("is_classifier", "maybe")),
	"parameter 'predict_proba': 'x' is neither":          config("FP32", 6, "FP32", "[1]", parameter("predict_proba", "x")),
	"parameter 'threshold': 'high' is no number":         config("FP32", 6, "FP32", "[1]", parameter("threshold", "high")),
	"parameter 'cpu_nthread': '-2' is no number":         config("FP32", 6, "FP32", "[1]", parameter("cpu_nthread", "-2")),
	"it can't be read as lightgbm, and seems to be of":   config("FP32", 6, "FP32", "[1]", parameter("model_type", "lightgbm")),
}

// Each config is refused by what is wrong with it.
func TestRefused(t *testing.T) {
	b := open(t)
	for want, config := range refusedConfigs {
		_, err := b.Load(t.Context(), spec(t, "multi.json", config))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "unable to load model 'm': ") {
			t.Errorf("Load: %v\nwant %q in it", err, want)
		}
	}
	sp := spec(t, "regression.json", config("FP32", 6, "FP32", "[1]", ""))
	m, err := b.Load(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "i", GPU: true}); err == nil || !strings.Contains(err.Error(), "KIND_GPU") {
		t.Errorf("an instance on a GPU: %v", err)
	}
}

// run executes rows of a golden on a model whose config is completed by its patch, and returns the answer.
func run(t *testing.T, b backend.Backend, sp backend.Spec, in infer.Tensor) infer.Tensor {
	t.Helper()
	d, err := b.Describe(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Patch.Input {
		if at := inputOf(sp.Config); at == nil {
			sp.Config.Input = append(sp.Config.Input, p)
		}
	}
	for _, p := range d.Patch.Output {
		if at := outputOf(sp.Config); at == nil {
			sp.Config.Output = append(sp.Config.Output, p)
		}
	}
	if d.Patch.MaxBatchSize != nil {
		sp.Config.MaxBatchSize = *d.Patch.MaxBatchSize
	}
	m, err := b.Load(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0"})
	if err != nil {
		t.Fatal(err)
	}
	batch := backendtest.NewBatch(backendtest.Request{Rows: int(in.Shape[0]), Inputs: []infer.Tensor{in}})
	batch.Run(inst)
	got := batch.Answers()[0]
	if got.Err != nil || len(batch.Faults()) > 0 {
		t.Fatalf("%v, %q", got.Err, batch.Faults())
	}
	out := got.Responses[0].Outputs[0]
	out.Data = slices.Clone(out.Data)
	if err := inst.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

func values(t infer.Tensor) []float64 {
	var v []float64
	for b := t.Data; len(b) > 0; {
		if t.Datatype == infer.FP32 {
			v, b = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		} else {
			v, b = append(v, math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		}
	}
	return v
}

// A model of each library without any config answers what the library answers: classes of a classifier, else its sums.
func TestWithoutConfig(t *testing.T) {
	b := open(t)
	for name, c := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			in, want := c.Input.tensor(t, inputName), values(c.Want.tensor(t, outputName))
			got := run(t, b, spec(t, c.File, ""), in)
			columns := int(c.Want.Shape[1])
			if got.Datatype != in.Datatype || got.Shape[0] != in.Shape[0] || len(got.Shape) != 2 {
				t.Fatalf("the answer is %v %v", got.Datatype, got.Shape)
			}
			classes := values(got)
			for row := range int(in.Shape[0]) {
				w := want[row*columns : (row+1)*columns]
				g := classes[row*int(got.Shape[1]) : (row+1)*int(got.Shape[1])]
				switch {
				case slices.Contains([]string{"xgb_binary", "xgb_legacy", "xgb_categories", "lgb_binary", "lgb_categories"}, name) && len(g) == 1 && (g[0] == 0 || g[0] == 1):
					if (w[0] > 0.5) != (g[0] == 1) {
						t.Errorf("row %d: class %v, of a probability of %v", row, g[0], w[0])
					}
				case columns > 1 && len(g) == 1:
					if w[int(g[0])] != slices.Max(w) {
						t.Errorf("row %d: class %v of %v", row, g[0], w)
					}
				case len(g) != len(w):
					t.Fatalf("%d values of a row, want %d", len(g), len(w))
				default:
					for i := range w {
						if math.Abs(g[i]-w[i]) > 1e-6*math.Abs(w[i]) {
							t.Errorf("row %d: %v, want %v", row, g, w)
							break
						}
					}
				}
			}
		})
	}
}

// What classifiers answer, by their parameters, dims and types.
func TestAnswers(t *testing.T) {
	b := open(t)
	all := goldens(t)
	binary, multi := all["xgb_binary"], all["xgb_multi"]
	probabilities, three := values(binary.Want.tensor(t, "")), values(multi.Want.tensor(t, ""))
	of := func(from []float64, f func(v float64) []float64) []float64 {
		var to []float64
		for _, v := range from {
			to = append(to, f(v)...)
		}
		return to
	}
	bound := func(threshold float64) []float64 {
		return of(probabilities, func(v float64) []float64 {
			if v > threshold {
				return []float64{1}
			}
			return []float64{0}
		})
	}
	var classes []float64
	for row := range len(three) / 3 {
		r := three[3*row : 3*row+3]
		classes = append(classes, float64(slices.Index(r, slices.Max(r))))
	}
	proba := parameter("predict_proba", "true")
	for name, c := range map[string]struct {
		golden golden
		config string
		want   []float64
	}{
		"class":              {binary, config("FP32", 6, "FP32", "[1]", ""), bound(0.5)},
		"threshold":          {binary, config("FP32", 6, "FP32", "[1]", parameter("threshold", "0.2")), bound(0.2)},
		"threshold of 1":     {binary, config("FP32", 6, "FP32", "[1]", parameter("threshold", "1")+parameter("output_class", "true")), bound(1)},
		"a probability":      {binary, config("FP32", 6, "FP32", "[1]", proba), probabilities},
		"no classifier":      {binary, config("FP32", 6, "FP32", "[1]", parameter("is_classifier", "false")), probabilities},
		"both":               {binary, config("FP32", 6, "FP32", "[2]", proba), of(probabilities, func(v float64) []float64 { return []float64{float64(1 - float32(v)), v} })},
		"classes":            {multi, config("FP32", 6, "FP32", "[1]", ""), classes},
		"probabilities":      {multi, config("FP32", 6, "FP32", "[3]", proba), three},
		"in FP64, out FP64":  {multi, config("FP64", 6, "FP64", "[3]", proba), three},
		"in FP64, out FP32":  {binary, config("FP64", 6, "FP32", "[1]", proba), probabilities},
		"classes in FP64":    {multi, config("FP32", 6, "FP64", "[1]", parameter("is_classifier", "1")), classes},
		"-1":                 {multi, config("FP32", 6, "FP32", "[-1]", proba), three},
		"for GPUs":           {multi, config("FP32", 6, "FP32", "[3]", proba+parameter("layout", "layered")+parameter("chunk_size", "4")), three},
		"dims in the config": {multi, `input { name: "input__0" data_type: TYPE_FP32 dims: [-1, 6] } output { name: "output__0" data_type: TYPE_FP32 dims: [-1, 3] }` + proba, three},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.golden.Input.tensor(t, inputName)
			sp := spec(t, c.golden.File, c.config)
			if inputOf(sp.Config).DataType == modelconfig.DataType_TYPE_FP64 {
				var wide []byte
				for _, v := range values(in) {
					wide = binaryAppend(wide, v)
				}
				in.Datatype, in.Data = infer.FP64, wide
			}
			got := run(t, b, sp, in)
			if !slices.Equal(values(got), c.want) {
				t.Errorf("%v\nwant %v", values(got), c.want)
			}
		})
	}
}

func binaryAppend(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// A batch of many rows is evaluated in parts, and ends between them when nobody waits any more.
func TestCancelled(t *testing.T) {
	b := open(t)
	c := goldens(t)["xgb_multi"]
	row := c.Input.tensor(t, inputName)
	sp := spec(t, c.File, config("FP32", 6, "FP32", "[1]", parameter("cpu_nthread", "3")))
	m, err := b.Load(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
	if err != nil {
		t.Fatal(err)
	}
	rows := 8 * m.(*model).chunk()
	many := infer.Tensor{Name: inputName, Datatype: infer.FP32, Shape: []int64{int64(rows), 6}}
	for len(many.Data) < rows*24 {
		many.Data = append(many.Data, row.Data...)
	}
	many.Data = many.Data[:rows*24]
	whole := backendtest.NewBatch(backendtest.Request{Rows: rows, Inputs: []infer.Tensor{many}})
	whole.Run(inst)
	if a := whole.Answers()[0]; a.Err != nil || len(a.Responses[0].Outputs[0].Data) != 4*rows {
		t.Fatalf("%v", a.Err)
	}
	gone := backendtest.NewBatch(backendtest.Request{Rows: rows, Inputs: []infer.Tensor{many}})
	gone.Cancel(0)
	gone.Run(inst)
	if err := gone.Answers()[0].Err; infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("a cancelled batch: %v", err)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
