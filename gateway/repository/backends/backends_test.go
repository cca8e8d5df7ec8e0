package backends

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/triton"
)

// tree lays down empty files.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func known(t *testing.T) modelconfig.Known {
	t.Helper()
	all, err := triton.Backends()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	version, model, shared = "repo/m/7/libtriton_x.so", "repo/m/libtriton_x.so", "backends/x/libtriton_x.so"
	program                = "backends/x/model.py"
)

// finds are files, and what is found of them; the errors are those of Triton 2.51, whose paths
// of models are absolute.
var finds = []struct {
	name     string
	files    []string
	query    Query
	inModels bool
	want     string // runner and file, or the error
}{
	{"version first", []string{version, model, shared, program}, Query{Backend: "x"}, true, "triton " + version},
	{"then the model", []string{model, shared, program}, Query{Backend: "x"}, true, "triton " + model},
	{"then the operator's", []string{shared, program}, Query{Backend: "x"}, false, "triton " + shared},
	{"then a program", []string{program}, Query{Backend: "x"}, false, "python " + program},
	{"no program in folders of models", []string{"repo/m/model.py", "repo/m/7/model.py"}, Query{Backend: "x"}, true,
		"unable to find backend library for backend 'x', try specifying runtime on the model configuration."},
	{"not trusted", []string{version, shared}, Query{Backend: "x"}, false,
		"backend library 'libtriton_x.so' of model 'm' lies in the model's folder 'm/7', from where nothing is run without --allow-model-backends"},
	{"nothing", nil, Query{Backend: "x"}, false, "unable to find backend library for backend 'x', try specifying runtime on the model configuration."},
	{"another backend's", []string{"backends/y/libtriton_y.so", "backends/x/libtriton_y.so"}, Query{Backend: "x"}, false, "unable to find backend library for backend 'x'"},
	{"runtime", []string{shared, "backends/x/libfoo.so"}, Query{Backend: "x", Runtime: "libfoo.so"}, false, "triton backends/x/libfoo.so"},
	{"runtime of a model", []string{"repo/m/libfoo.so", "backends/x/libfoo.so"}, Query{Backend: "x", Runtime: "libfoo.so"}, true, "triton repo/m/libfoo.so"},
	{"runtime is a program", []string{shared, program}, Query{Backend: "x", Runtime: "model.py"}, false, "python " + program},
	{"no such runtime", []string{shared}, Query{Backend: "x", Runtime: "libfoo.so"}, false,
		"unable to find backend library 'libfoo.so' for model 'm', searched: 'm/7' 'm' 'DIR/backends/x'"},
	{"no such program", []string{shared}, Query{Backend: "x", Runtime: "model.py"}, false,
		"unable to find backend library 'model.py' for model 'm', searched: 'DIR/backends/x'"},
	{"runtime leaves the folder", []string{"backends/libfoo.so", "repo/libfoo.so"}, Query{Backend: "x", Runtime: "../libfoo.so"}, true,
		"unable to find backend library '../libfoo.so' for model 'm', searched: 'm/7' 'm' 'DIR/backends/x'"},
	{"runtime is absolute", nil, Query{Backend: "x", Runtime: "/bin/libfoo.so"}, true, "unable to find backend library '/bin/libfoo.so'"},
	{"runtime of no known kind", []string{"backends/x/worker.jar"}, Query{Backend: "x", Runtime: "worker.jar"}, true, "unable to find backend library 'worker.jar' for model 'm'"},
	{"backend leaves the folder", []string{"x/libtriton_x.so"}, Query{Backend: "../x"}, true,
		"unable to find backend library for backend '../x', try specifying runtime on the model configuration."},
	{"backend of folders", []string{"backends/a/b/libtriton_b.so"}, Query{Backend: "a/b"}, true, "unable to find backend library for backend 'a/b'"},
	{"backend is a dot", []string{"backends/libtriton_..so"}, Query{Backend: "."}, true, "unable to find backend library for backend '.'"},
}

func TestFind(t *testing.T) {
	for _, row := range finds {
		t.Run(row.name, func(t *testing.T) {
			dir := tree(t, row.files...)
			row.query.Model, row.query.ModelDir, row.query.Version = "m", filepath.Join(dir, "repo/m"), 7
			found, err := Find(Config{Directory: filepath.Join(dir, "backends"), InModels: row.inModels}, known(t), row.query)
			got := found.Runner + " " + strings.TrimPrefix(found.File, dir+"/")
			if err != nil {
				got = strings.ReplaceAll(err.Error(), dir, "DIR")
			}
			if !strings.HasPrefix(got, row.want) {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// What a model's folder links to elsewhere is not its owner's to run; the operator's links count.
func TestFindLinks(t *testing.T) {
	dir := tree(t, "elsewhere/lib.so", "repo/m/7/file", "backends/x/file", "repo/m/real.so")
	for link, target := range map[string]string{"repo/m/libtriton_x.so": "elsewhere/lib.so", "backends/x/libtriton_x.so": "elsewhere/lib.so"} {
		if err := os.Symlink(filepath.Join(dir, target), filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	q := Query{Backend: "x", Model: "m", ModelDir: filepath.Join(dir, "repo/m"), Version: 7}
	found, err := Find(Config{Directory: filepath.Join(dir, "backends"), InModels: true}, known(t), q)
	if want := filepath.Join(dir, "backends/x/libtriton_x.so"); err != nil || found.File != want {
		t.Errorf("got %v, %v; want %s", found, err, want)
	}
	if err := os.Symlink("real.so", filepath.Join(dir, "repo/m/libfoo.so")); err != nil {
		t.Fatal(err)
	}
	q.Runtime = "libfoo.so"
	if found, err = Find(Config{InModels: true}, known(t), q); err != nil || filepath.Base(found.File) != "libfoo.so" {
		t.Errorf("a link within the folder: got %v, %v", found, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "repo/m/7/libfoo.so"), 0o755); err != nil {
		t.Fatal(err)
	}
	if found, err = Find(Config{InModels: true}, known(t), q); err != nil || filepath.Dir(found.File) != q.ModelDir {
		t.Errorf("a folder of that name: got %v, %v", found, err)
	}
}

func TestUsual(t *testing.T) {
	for runtime, want := range map[string]bool{"libtriton_x.so": true, "model.py": true, "libtriton_y.so": false, "": false} {
		if got := Usual(known(t), "x", runtime); got != want {
			t.Errorf("%q: got %v, want %v", runtime, got, want)
		}
	}
}
