// Package backends finds the file that makes a backend which no worker has by itself: a
// library or a program in the version's folder, the model's, or the operator's folder of
// backends, as Triton finds libtriton_<name>.so. Which names such files have, and which
// backend of a worker runs them, is the workers' word (message Runtime, proto/worker).
//
// The repository calls it once for each version that is planned. There is no state, and
// everything may be called from any goroutine.
package backends

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// DefaultDirectory is --backend-directory where it is not given. Source: Triton's.
const DefaultDirectory = "/opt/tritonserver/backends"

// Config says where backends may be.
type Config struct {
	Directory string // --backend-directory: <Directory>/<backend>/<file>; "": nowhere
	InModels  bool   // --allow-model-backends: files in folders of models are run
}

// Query is one version of a model whose backend is looked for.
type Query struct {
	Backend  string // of the config; not ""
	Runtime  string // of the config: the file's name; "": the usual one
	Model    string
	ModelDir string // absolute: <repository>/<model>
	Version  int64
}

// Found is the file that makes a backend, and the backend that runs it.
type Found struct {
	Runner string
	File   string // absolute
}

// folder is one that is searched.
type folder struct {
	path  string // absolute
	shown string // in errors: paths of models are relative to their repository
	model bool   // of the model's owner, who is not the operator
}

// folders are those in which Triton looks, in its order.
// Source: TritonModel::ResolveBackendPaths of Triton.
func (c *Config) folders(q *Query) []folder {
	version := strconv.FormatInt(q.Version, 10)
	all := []folder{
		{path: filepath.Join(q.ModelDir, version), shown: filepath.Join(q.Model, version), model: true},
		{path: q.ModelDir, shown: q.Model, model: true},
	}
	if c.Directory != "" {
		dir := filepath.Join(c.Directory, q.Backend)
		all = append(all, folder{path: dir, shown: dir})
	}
	return all
}

// Find looks for the file of a version's backend. The kinds of files are tried in the
// order of known; for one kind the folders are the version's, the model's, then the
// operator's. The error has Triton's words, and paths of models relative to the repository.
func Find(c Config, known modelconfig.Known, q Query) (Found, error) {
	if !plainName(q.Backend) {
		return Found{}, modelconfig.NoLibrary(q.Backend)
	}
	var searched []folder
	for _, b := range known {
		for _, r := range b.GetRuntimes() {
			name := fileName(r, &q)
			if name == "" {
				continue
			}
			for _, f := range c.folders(&q) {
				if f.model && r.GetShared() {
					continue
				}
				searched = append(searched, f)
				if !f.has(name) {
					continue
				}
				if f.model && !c.InModels {
					return Found{}, fmt.Errorf("backend library '%s' of model '%s' lies in the model's folder '%s', "+
						"from where nothing is run without --allow-model-backends", name, q.Model, f.shown)
				}
				return Found{Runner: b.GetName(), File: filepath.Join(f.path, name)}, nil
			}
		}
	}
	if q.Runtime == "" {
		return Found{}, modelconfig.NoLibrary(q.Backend)
	}
	if searched == nil {
		searched = c.folders(&q)
	}
	return Found{}, notFound(&q, searched)
}

// notFound is Triton's error for a file that a config names.
func notFound(q *Query, searched []folder) error {
	text := fmt.Sprintf("unable to find backend library '%s' for model '%s', searched:", q.Runtime, q.Model)
	for _, f := range searched {
		text += fmt.Sprintf(" '%s'", f.shown)
	}
	return fmt.Errorf("%s", text)
}

// Usual says whether a config's runtime is the name that the backend's file has anyway: it
// asks for nothing else than the backend.
func Usual(known modelconfig.Known, backend, runtime string) bool {
	for _, b := range known {
		for _, r := range b.GetRuntimes() {
			if runtime == usualName(r, backend) {
				return true
			}
		}
	}
	return false
}

func usualName(r *worker.Runtime, backend string) string {
	return strings.ReplaceAll(r.GetFile(), "<name>", backend)
}

// fileName is the name of the file of that kind that is looked for; "" where the config
// asks for a file of another kind.
func fileName(r *worker.Runtime, q *Query) string {
	name := usualName(r, q.Backend)
	if q.Runtime != "" {
		if filepath.Ext(q.Runtime) != filepath.Ext(name) {
			return ""
		}
		name = q.Runtime
	}
	if !plainName(name) {
		return ""
	}
	return name
}

// has says whether the folder holds a plain file of that name. Links of a model's owner
// are not followed out of the folder.
func (f *folder) has(name string) bool {
	if !f.model {
		info, err := os.Stat(filepath.Join(f.path, name))
		return err == nil && info.Mode().IsRegular()
	}
	root, err := os.OpenRoot(f.path)
	if err != nil {
		return false
	}
	defer root.Close()
	info, err := root.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// plainName says that a text of a config is the name of a file in a folder, and no path.
func plainName(name string) bool {
	return modelconfig.SafePath(name) && filepath.Base(name) == name && name != "."
}
