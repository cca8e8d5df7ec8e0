//go:build cgo

package forest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func temporary(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// refused loads a file that must not be loaded, and returns why.
func refused(t *testing.T, s Source) error {
	t.Helper()
	s.Library = library(t)
	f, err := Load(t.Context(), s)
	if err == nil {
		t.Errorf("%s was loaded: %d trees", s.Path, f.Trees)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return err
}

// A file that treelite is busy with for a minute: its last count says that 2^31 fields follow, each of them empty.
func TestEndlessFile(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "testdata", "forest_two.tl"))
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[len(b)-4:], math.MaxInt32)
	b = append(b, make([]byte, 24)...)
	err = refused(t, Source{Format: Checkpoint, Path: temporary(t, b), most: time.Second})
	if err != nil && !strings.Contains(err.Error(), "needs more CPU time") {
		t.Error(err)
	}
}

// A tree that is one line of nodes: no step of reading or evaluating it may recurse.
func TestLine(t *testing.T) {
	const inner = 500_000
	var b bytes.Buffer
	list := func(name string, n int, f func(i int) string) {
		b.WriteString(name + "=")
		for i := range n {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(f(i))
		}
		b.WriteByte('\n')
	}
	same := func(s string) func(int) string { return func(int) string { return s } }
	b.WriteString("tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=0\nobjective=regression\n" +
		"feature_names=x\nfeature_infos=[0:1]\ntree_sizes=1\n\nTree=0\n")
	fmt.Fprintf(&b, "num_leaves=%d\nnum_cat=0\n", inner+1)
	list("split_feature", inner, same("0"))
	list("split_gain", inner, same("1"))
	list("threshold", inner, func(i int) string { return fmt.Sprint(i) })
	list("decision_type", inner, same("2"))
	list("left_child", inner, func(i int) string { return fmt.Sprint(-i - 1) })
	list("right_child", inner, func(i int) string {
		if i == inner-1 {
			return fmt.Sprint(-inner - 1)
		}
		return fmt.Sprint(i + 1)
	})
	list("leaf_value", inner+1, func(i int) string { return fmt.Sprint(i) })
	list("leaf_weight", inner+1, same("1"))
	list("leaf_count", inner+1, same("1"))
	list("internal_value", inner, same("0"))
	list("internal_weight", inner, same("1"))
	list("internal_count", inner, same("1"))
	b.WriteString("is_linear=0\nshrinkage=1\n\n\nend of trees\n")
	f, err := Load(t.Context(), Source{Library: library(t), Format: LightGBM, Path: temporary(t, b.Bytes())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	if f.Nodes != 2*inner+1 {
		t.Errorf("%d nodes", f.Nodes)
	}
	var in, out [8]byte
	for _, v := range []float64{-1, 12.5, float64(inner - 1), float64(inner), math.NaN()} {
		binary.LittleEndian.PutUint64(in[:], math.Float64bits(v))
		f.Predict(in[:], out[:], 1)
		want := max(0, min(math.Ceil(v), float64(inner)))
		if math.IsNaN(v) {
			want = 0 // as 0, which is what LightGBM does where it has seen none missing
		}
		if got := math.Float64frombits(binary.LittleEndian.Uint64(out[:])); got != want {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}

// A file that ends too early is refused, in words.
func TestTruncated(t *testing.T) {
	for file, format := range map[string]Format{"multi.json": XGBoostJSON, "binary.ubj": XGBoostUBJSON, "xgboost.model": XGBoost,
		"multi.txt": LightGBM, "forest.tl": Checkpoint} {
		b, err := os.ReadFile(filepath.Join("..", "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		parts := []int{0, 1, 40, len(b) / 3, len(b) / 2, len(b) * 2 / 3}
		if format == Checkpoint {
			parts = append(parts, len(b)-200, len(b)-1)
		}
		for _, part := range parts {
			err := refused(t, Source{Format: format, Path: temporary(t, b[:part])})
			if err != nil && (strings.ContainsAny(err.Error(), "\n~") || len(err.Error()) < 10) {
				t.Errorf("%s, %d bytes of it: %v", file, part, err)
			}
		}
	}
}

// A load ends with its context.
func TestLoadEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("nobody wants it")
	cancel(why)
	if _, err := Load(ctx, Source{Library: library(t), Format: Checkpoint, Path: filepath.Join("..", "testdata", "forest.tl")}); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}
