//go:build cgo

package forest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// library is the path of treelite's; without it the test is skipped.
func library(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SLUICE_ENGINES")
	if dir == "" {
		t.Skip("SLUICE_ENGINES is not set: no treelite to test with (make test installs it)")
	}
	return filepath.Join(dir, "treelite", "treelite", "lib", "libtreelite.so")
}

type array struct {
	Shape    []int
	Datatype string
	Data     []byte
}

func (a *array) UnmarshalJSON(b []byte) error {
	var raw struct {
		Shape    []int
		Datatype string
		Data     string
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	a.Shape, a.Datatype = raw.Shape, raw.Datatype
	var err error
	a.Data, err = base64.StdEncoding.DecodeString(raw.Data)
	return err
}

// values are the array's as float64, which has every float32.
func (a *array) values() []float64 {
	var v []float64
	for b := a.Data; len(b) > 0; {
		if a.Datatype == "FP32" {
			v, b = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		} else {
			v, b = append(v, math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		}
	}
	return v
}

type golden struct {
	File        string
	Input, Want array
}

func goldens(t testing.TB) map[string]golden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]golden{}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func load(t testing.TB, file string) *Forest {
	t.Helper()
	path := filepath.Join("..", "testdata", file)
	format, ok, err := Detect(path)
	if err != nil || !ok {
		t.Fatalf("Detect(%s): %v, %v", file, ok, err)
	}
	f, err := Load(t.Context(), Source{Library: library(t), Format: format, Path: path})
	if err != nil {
		t.Fatalf("Load(%s): %v", file, err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}

// ulps are how many numbers of the type lie between two.
func ulps(datatype string, a, b float64) float64 {
	if a == b {
		return 0
	}
	if datatype == "FP32" {
		return math.Abs(float64(int64(math.Float32bits(float32(a))) - int64(math.Float32bits(float32(b)))))
	}
	return math.Abs(float64(int64(math.Float64bits(a)) - int64(math.Float64bits(b))))
}

// inexact are cases whose library takes exp from elsewhere, or has a number that treelite keeps as a float: by
// how many units of the last place answers may differ.
var inexact = map[string]float64{
	"skl_boosting":  1,   // numpy's exp
	"skl_hist":      1,   // likewise
	"skl_forest":    2,   // treelite normalizes leaves that scikit-learn has normalized
	"skl_isolation": 1e8, // treelite keeps the average path length as a float
}

func TestPredictsAsItsLibrary(t *testing.T) {
	for name, c := range goldens(t) {
		f := load(t, c.File)
		rows := c.Input.Shape[0]
		if f.Wide != (c.Input.Datatype == "FP64") {
			t.Errorf("%s: wide is %v, the input is %s", name, f.Wide, c.Input.Datatype)
			continue
		}
		got := array{Datatype: c.Input.Datatype, Data: make([]byte, rows*f.Targets*f.Classes*len(c.Input.Data)/(rows*f.Features))}
		f.Predict(c.Input.Data, got.Data, rows)
		g, w := got.values(), c.Want.values()
		if f.Task == BinaryClassifier && c.Want.Shape[1] == 2 { // the library gives both
			for i := range g {
				g[i], w[i] = 1-g[i], w[2*i]
			}
			w = w[:len(g)]
		}
		if len(g) != len(w) {
			t.Errorf("%s: %d values, want %d", name, len(g), len(w))
			continue
		}
		worst := 0.0
		for i := range g {
			worst = max(worst, ulps(c.Want.Datatype, g[i], w[i]))
		}
		if worst > inexact[name] {
			t.Errorf("%s: an answer is off by %v units of the last place, want at most %v", name, worst, inexact[name])
		}
	}
}
