package fil

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

func TestModelFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"xgboost.ubj", "checkpoint.tl", "own.bin"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, given string
		as          *format
		want, err   string
	}{
		{name: "by the gateway", given: "xgboost.ubj", want: "xgboost.ubj"},
		{name: "own name", given: "own.bin", as: formatOf(forest.LightGBM), want: "own.bin"},
		{name: "by model_type", given: "xgboost.ubj", as: formatOf(forest.Checkpoint), want: "checkpoint.tl"},
		{name: "by model_type, which has no file", given: "xgboost.ubj", as: formatOf(forest.LightGBM), want: "xgboost.ubj"},
		{name: "of the folder", given: ".", want: "xgboost.ubj"},
		{name: "of the folder by model_type", given: ".", as: formatOf(forest.Checkpoint), want: "checkpoint.tl"},
		{name: "not there", given: "model.txt", err: "'model.txt' is not in its version folder"},
		{name: "not there by model_type", given: ".", as: formatOf(forest.LightGBM), err: "'model.txt' is not in its version folder"},
	} {
		got, err := modelFile(filepath.Join(dir, c.given), c.as)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
		case err != nil || got != filepath.Join(dir, c.want):
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	if _, err := modelFile(t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "has none of xgboost.json, xgboost.ubj") {
		t.Errorf("an empty folder: %v", err)
	}
}
