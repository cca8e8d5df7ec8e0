package python

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestInspect(t *testing.T) {
	b := open(t)
	defer b.Close()
	for name, c := range map[string]struct {
		source  string
		finding string // "": none
		remark  string
	}{
		"whole": {"class TritonPythonModel:\n    def initialize(self, args): pass\n    async def execute(self, requests): pass\n",
			"", "1/model.py has initialize, execute (async)"},
		"completes": {"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): return c\n    def execute(self, r): pass\n",
			"", "a load asks auto_complete_config for what the config leaves out"},
		"nothing is run":   {"open('/nowhere')\nclass TritonPythonModel:\n    def execute(self, requests): pass\n", "", "has execute"},
		"base in the file": {"class B:\n    def execute(self, r): pass\nclass TritonPythonModel(B): pass\n", "", "has execute"},
		"base elsewhere":   {"import json\nclass TritonPythonModel(json.Other): pass\n", "", "Python 3."},
		"class elsewhere":  {"from helper import TritonPythonModel\n", "", "Python 3."},
		"made by hand":     {"class TritonPythonModel:\n    execute = lambda self, r: None\n", "", "has execute"},
		"optional import":  {"try:\n    import not_there\nexcept ImportError:\n    pass\nclass TritonPythonModel:\n    def execute(self, r): pass\n", "", "has execute"},
		"no class":         {"x = 1\n", "1/model.py has no class TritonPythonModel", ""},
		"in a text":        {"'''\nclass TritonPythonModel:\n    def execute(self, r): pass\n'''\n", "1/model.py has no class TritonPythonModel", ""},
		"no execute":       {"class TritonPythonModel:\n    def initialize(self, args): pass\n", "class TritonPythonModel of 1/model.py has no function execute", ""},
		"no Python":        {"class TritonPythonModel\n", "1/model.py, line 1: ", ""},
		"zero bytes":       {"x = 1\x00\n", "1/model.py", ""},
		"no package": {"import helper\nimport not_there.at_all\nclass TritonPythonModel:\n    def execute(self, r): pass\n",
			"1/model.py, line 2: there is no package 'not_there' for ", ""},
	} {
		spec := specOf(t, "identity", nil)
		spec.Inspect = true
		if err := os.WriteFile(spec.ModelFile, []byte(c.source), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(spec.ModelFile), "helper.py"), []byte("raise SystemExit\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := b.Describe(t.Context(), spec)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		has := func(list []string, text string) bool {
			return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, text) })
		}
		if c.finding == "" && len(d.Findings) > 0 || !has(d.Findings, c.finding) && c.finding != "" || len(d.Findings) > 1 {
			t.Errorf("%s: findings %q, want %q", name, d.Findings, c.finding)
		}
		if c.remark != "" && !has(d.Remarks, c.remark) {
			t.Errorf("%s: remarks %q, want %q", name, d.Remarks, c.remark)
		}
	}
}
