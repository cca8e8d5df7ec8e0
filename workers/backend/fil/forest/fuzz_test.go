//go:build cgo

package forest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FuzzLoad wants files that were changed, however, to be refused or to predict something: nothing of them may be
// believed.
func FuzzLoad(f *testing.F) {
	l := library(f)
	for _, file := range []string{"boosting_two.tl", "forest_two.tl", "xgboost.model", "binary.ubj", "categories.json", "categories.txt"} {
		b, err := os.ReadFile(filepath.Join("..", "testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	path := filepath.Join(f.TempDir(), "model")
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			t.Skip()
		}
		format, ok := detect(b)
		if !ok {
			return
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // treelite may never come to an end with it
		defer cancel()
		forest, err := Load(ctx, Source{Library: l, Format: format, Path: path})
		if err != nil {
			return
		}
		defer func() {
			if err := forest.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}()
		if n := 8 * 3 * (forest.Features + forest.Targets*forest.Classes); n < 1<<24 {
			forest.Predict(make([]byte, 8*3*forest.Features), make([]byte, 8*3*forest.Targets*forest.Classes), 3)
		}
	})
}
