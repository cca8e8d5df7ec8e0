package sagemaker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// allowing refuses calls that change models other than these, and inference and reading of
// any but those in seen.
func allowing(change, seen []string) func(*infer.Envelope, string) bool {
	return func(env *infer.Envelope, model string) bool {
		if env.Change {
			return slices.Contains(change, model)
		}
		return model == "" || slices.Contains(seen, model)
	}
}

// TestLoadNeedsEveryName: a caller who may control one model can't put it where callers of
// another one look for theirs, and can't bring steps whose names are others'.
func TestLoadNeedsEveryName(t *testing.T) {
	root := lay(t)
	ensemble := `platform: "ensemble" ensemble_scheduling { step [ { model_name: "step" } ] }`
	for name, text := range map[string]string{"d/model/all/config.pbtxt": ensemble, "d/model/step/1/x": ""} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		name, target, hash string
		may                []string // be controlled
		status             int
	}{
		{"victim", "mine", "a", []string{"mine"}, 403},
		{"victim", "mine", "a", []string{"victim"}, 403},
		{"victim", "mine", "a", []string{"mine", "victim"}, 200},
		{"mine", "mine", "a", []string{"mine"}, 200},
		{"victim", "", "a", []string{"victim"}, 403}, // the body's name decides too late
		{"victim", "", "a", []string{"", "victim"}, 200},
		{"victim", "", "a", []string{""}, 403},
		{"victim", "mine", "nope", []string{"mine"}, 403}, // before the folder is looked for
		{"mine", "mine", "d", []string{"mine"}, 403},
		{"mine", "mine", "d", []string{"mine", "step"}, 200},
	} {
		f := serve(t, root)
		f.pipe.allow = allowing(row.may, nil)
		h := header{}
		if row.target != "" {
			h[TargetHeader] = row.target
		}
		status, body := f.ask(t.Context(), "POST", "/models", fmt.Sprintf(`{"model_name":%q,"url":%q}`, row.name,
			root+"/"+row.hash+"/model"), h)
		if status != row.status {
			t.Errorf("%+v: %d %s", row, status, body)
		}
		if n := len(f.models.repos); (n == 1) != (row.status == 200) {
			t.Errorf("%+v: registered %v", row, f.models.repos)
		}
		if row.status != 200 {
			f.pipe.allow = nil
			if _, body := f.ask(t.Context(), "GET", "/models", "", nil); body != `{"models":[]}` {
				t.Errorf("%+v: left behind %s", row, body)
			}
		}
	}
}

// TestUnloadNeedsEveryName: neither who may control what runs under a name alone, nor who
// may control the name alone, takes it away.
func TestUnloadNeedsEveryName(t *testing.T) {
	for _, row := range []struct {
		may    []string
		status int
	}{{[]string{"mine"}, 403}, {[]string{"name"}, 403}, {[]string{"name", "mine"}, 200}} {
		f := open(t)
		f.ask(t.Context(), "POST", "/models", `{"model_name":"name","url":"`+f.root+`/a/model"}`,
			header{TargetHeader: "mine"})
		f.pipe.allow = allowing(row.may, nil)
		if status, body := f.ask(t.Context(), "DELETE", "/models/name", "", nil); status != row.status {
			t.Errorf("%v: %d %s", row.may, status, body)
		}
		f.pipe.allow = nil
		if status, _ := f.ask(t.Context(), "GET", "/models/name", "", nil); (status == 404) != (row.status == 200) {
			t.Errorf("%v: %d afterwards", row.may, status)
		}
	}
}

// TestInvokeAsksForWhatRuns: the right is asked on the model that runs, whatever it is
// called in the path, and what runs is told to nobody who may not run it.
func TestInvokeAsksForWhatRuns(t *testing.T) {
	f := open(t)
	f.ask(t.Context(), "POST", "/models", `{"model_name":"name","url":"`+f.root+`/a/model"}`,
		header{TargetHeader: "secret"})
	for _, row := range []struct {
		path, target string
		may          []string
		status       int
	}{
		{"name", "", []string{"name"}, 403},
		{"name", "", []string{"secret"}, 400}, // runs: the model is busy
		{"name", "secret", []string{"secret"}, 400},
		{"name", "secret", []string{"name"}, 403},
		// whether a name is in use can't be told from the answers
		{"name", "own", []string{"own", "name"}, 404},
		{"none", "own", []string{"own"}, 404},
		{"name", "own", []string{"own", "secret"}, 400},
		{"none", "", []string{"own"}, 403},
		{"none", "", []string{"none"}, 404},
		{"none", "other", []string{"own"}, 403},
		{"name", "other", []string{"own"}, 403},
	} {
		f.pipe.allow = allowing(nil, row.may)
		f.pipe.visible = func(model string) bool { return slices.Contains(row.may, model) }
		h := header{}
		if row.target != "" {
			h[TargetHeader] = row.target
		}
		status, body := f.ask(t.Context(), "POST", "/models/"+row.path+"/invoke", tensor, h)
		if status != row.status || strings.Contains(body, "secret") && !slices.Contains(row.may, "secret") &&
			row.target != "secret" && row.status != 403 {
			t.Errorf("%+v: %d %s", row, status, body)
		}
	}
}
