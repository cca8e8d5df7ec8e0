package check

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/repository"
)

// beside are folders of a model that are no versions.
var beside = []string{"configs", "warmup", "initial_state"}

// almost matches folder names that were meant to be versions; the number is the group.
var almost = regexp.MustCompile(`^(?i:v|ver|version)?[-_. ]?0*([1-9][0-9]*)(?:\.0)*$`)

// nearMisses looks for what was probably meant, in places where it has no effect.
func (m *Model) nearMisses(plan *repository.Plan) {
	known := plan.Known()
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return // the plan says so
	}
	hint := func(format string, args ...any) { m.Hints = append(m.Hints, fmt.Sprintf(format, args...)) }
	config := plan.Source != nil || exists(m.Dir, repository.ConfigFile)
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, ".") || name == repository.ConfigFile:
		case isDir(m.Dir, e):
			m.folder(name, plan, hint)
		case !config && nearConfig(name):
			hint("%s is not read: the config's name is %s", name, repository.ConfigFile)
		case isModelFile(known, name):
			hint("%s lies in the model folder and is not read: model files lie in a version folder, %s", name, filepath.Join("1", name))
		}
	}
	for _, n := range plan.Existing {
		m.versionFolder(n, plan, hint)
	}
	// Of duplicates the versions were not looked for.
	if !m.duplicate && len(plan.Existing) == 0 && !slices.ContainsFunc(m.Hints, func(h string) bool { return strings.Contains(h, "version") }) {
		hint("there is no version folder: put the model file into %s", filepath.Join(m.Name, "1"))
	}
}

// folder looks at a subfolder of a model that is no version.
func (m *Model) folder(name string, plan *repository.Plan, hint func(string, ...any)) {
	if _, ok := repository.ParseVersion(name); ok || slices.Contains(beside, name) {
		return
	}
	if match := almost.FindStringSubmatch(name); match != nil {
		hint("the folder %s is no version: versions are whole numbers that don't begin with 0; rename it to %s", name, match[1])
		return
	}
	if exists(m.Dir, name, repository.ConfigFile) {
		hint("%s holds a %s: models lie one folder higher, directly in the repository", name, repository.ConfigFile)
		return
	}
	if len(plan.Existing) == 0 {
		for _, file := range plan.Known().Filenames() {
			if exists(m.Dir, name, file) {
				hint("the folder %s holds %s but is no version: rename it to 1", name, file)
				return
			}
		}
	}
}

// versionFolder looks at the files of a version.
func (m *Model) versionFolder(n int64, plan *repository.Plan, hint func(string, ...any)) {
	folder := strconv.FormatInt(n, 10)
	entries, err := os.ReadDir(filepath.Join(m.Dir, folder))
	if err != nil {
		return
	}
	known, want, backend := plan.Known(), "", ""
	if plan.Config != nil {
		want, backend = plan.Config.DefaultModelFilename, plan.Config.Backend
	}
	if len(entries) == 0 {
		if want != "" && known.ReadsFiles(backend) {
			hint("the version folder %s is empty", folder)
		}
		return
	}
	if want != "" && exists(m.Dir, folder, want) || want == "" && backend != "" {
		return
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case want != "" && filepath.Ext(name) == filepath.Ext(want):
			hint(`%s/%s is not read: rename it to %s, or set default_model_filename: "%s"`, folder, name, want, name)
		case want == "" && plan.Config != nil && isModelFile(known, name) && !slices.Contains(known.Filenames(), name):
			hint(`%s/%s has none of the names that tell the backend: rename it to model%s, or set backend and default_model_filename: "%s"`,
				folder, name, filepath.Ext(name), name)
		case nearConfig(name) || name == repository.ConfigFile:
			hint("%s/%s is not read: the config lies in the model folder, beside the versions", folder, name)
		default:
			continue
		}
		return
	}
}

// nested says that a path is a model folder and no repository.
func nested(known modelconfig.Known, path string) string {
	model := exists(path, repository.ConfigFile)
	for _, file := range known.Filenames() {
		model = model || exists(path, "1", file)
	}
	if !model {
		return ""
	}
	return fmt.Sprintf("%s looks like a model folder: a repository is the folder around model folders, here %s", path, filepath.Dir(filepath.Clean(path)))
}

func exists(elements ...string) bool {
	_, err := os.Stat(filepath.Join(elements...))
	return err == nil
}

func isDir(dir string, e fs.DirEntry) bool {
	info, err := os.Stat(filepath.Join(dir, e.Name()))
	return err == nil && info.IsDir()
}

// nearConfig says that a file was meant to be the config: config.pbxt, model.pbtxt.
func nearConfig(name string) bool {
	return modelconfig.Nearest(name, []string{repository.ConfigFile}) != "" || filepath.Ext(name) == ".pbtxt" || name == "config.txt"
}

// isModelFile says that a name ends as model files do.
func isModelFile(known modelconfig.Known, name string) bool {
	return slices.ContainsFunc(known.Filenames(), func(f string) bool { return filepath.Ext(f) == filepath.Ext(name) })
}
