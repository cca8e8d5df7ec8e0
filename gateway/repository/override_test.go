package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// TestOverrideBounds: a load call's files have bounds that keep their removal, and the text
// of an error, small.
func TestOverrideBounds(t *testing.T) {
	parent := t.TempDir()
	r, _ := explicit(t, &fakeWorkers{}, Config{TempDir: parent}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	json := `{"backend":"identity","input":[{"name":"in","data_type":"TYPE_FP32","dims":[2]}],` +
		`"output":[{"name":"out","data_type":"TYPE_FP32","dims":[2]}]}`
	many := map[string][]byte{}
	for i := range maxOverrideFiles + 1 {
		many[fmt.Sprintf("1/%d", i)] = nil
	}
	deep := func(n int) string { return strings.Repeat("a/", n) + "w" }
	for _, row := range []struct {
		name  string
		files map[string][]byte
		text  string
	}{
		{"deep", map[string][]byte{deep(maxDepth + 1): nil}, "at most"},
		{"very deep", map[string][]byte{deep(5000): nil}, "at most"},
		{"long", map[string][]byte{strings.Repeat("a", 5000): nil}, "at most"},
		{"long parts", map[string][]byte{strings.Repeat(strings.Repeat("b", 200)+"/", 10) + "w": nil}, "at most"},
		{"a part that no file system takes", map[string][]byte{strings.Repeat("c", 300): nil}, "failed to write"},
		{"many", many, "at most"},
		{"outside, and long", map[string][]byte{strings.Repeat("../", 5000) + "w": nil}, "must stay within"},
	} {
		row.files["1/w"] = nil
		err := r.Load(t.Context(), "m", &Override{Config: &json, Files: row.files})
		if err == nil || infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), row.text) ||
			len(err.Error()) > 600 {
			text := fmt.Sprint(err)
			t.Errorf("%s: %d bytes: %.300s, want %s", row.name, len(text), text, row.text)
		}
	}
	if err := r.Load(t.Context(), "m", &Override{Config: &json, Files: map[string][]byte{"1/w": nil,
		deep(maxDepth - 1): nil}}); err != nil {
		t.Errorf("as deep as may be: %v", err)
	}
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the files are removed", func() bool {
		left, err := filepath.Glob(filepath.Join(parent, "*", "gateway-*", "model-*"))
		return err == nil && len(left) == 0
	})
	if _, err := os.Stat(parent); err != nil {
		t.Error(err)
	}
}
