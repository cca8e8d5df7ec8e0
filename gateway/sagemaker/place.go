package sagemaker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// place is where a model lies: a folder of a repository.
type place struct{ repository, folder string }

// locate finds the model that a URL means. The URL is <root>/<hash>/model[/<folder>], and
// what it names must really lie under the root: a link that leads out of it is refused.
// Where it holds a config it is the model's folder itself, else a repository of one model,
// or of an ensemble and its steps.
// Source: SageMakerMMELoadModel of the original 2.73; the look at links is ours, and that
// nothing is loaded by chance where several models could be meant.
func (c *Config) locate(url string) (place, error) {
	path := filepath.Clean(url)
	rest, ok := strings.CutPrefix(path, filepath.Clean(c.Root)+"/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 2 || len(parts) > 3 || parts[1] != "model" || slices.ContainsFunc(parts, notPlain) {
		return place{}, c.noPath(url)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil { // the original's words
		return place{}, infer.Errorf(infer.InvalidArg, "failed to register '%s', repository not found", clip(path))
	}
	root, err := filepath.EvalSymlinks(c.Root)
	if err != nil || !strings.HasPrefix(real, root+"/") {
		return place{}, c.noPath(url)
	}
	if info, err := os.Stat(filepath.Join(path, "config.pbtxt")); err == nil && info.Mode().IsRegular() {
		return place{filepath.Dir(path), filepath.Base(path)}, contained(root, path, modelDepth)
	}
	folder, err := only(path)
	if err == nil {
		err = contained(root, path, 1+modelDepth)
	}
	return place{path, folder}, err
}

// beside lists the other folders of a model's repository: they become models under the
// names that they have.
func beside(at place) ([]string, error) {
	folders, err := modelFolders(at.repository)
	return slices.DeleteFunc(folders, func(name string) bool { return name == at.folder }), err
}

// modelFolders lists the folders of a repository that are models.
func modelFolders(repository string) ([]string, error) {
	entries, err := os.ReadDir(repository)
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "failed to register '%s', repository not found", clip(repository))
	}
	var folders []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			folders = append(folders, e.Name())
		}
	}
	return folders, nil
}

// modelDepth is how deep a model's folder is looked through for links: configs, labels and
// versions, and the models in versions' folders. What lies deeper is a backend's.
const modelDepth = 2

// contained says that links in a folder lead nowhere out of the root: else a config that
// is a link would be read, and told of in errors, wherever it is.
func contained(root, dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "failed to register '%s', repository not found", clip(dir))
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && depth > 1:
			err = contained(root, at, depth-1)
		case e.Type()&os.ModeSymlink != 0:
			if real, fault := filepath.EvalSymlinks(at); fault != nil || !strings.HasPrefix(real, root+"/") {
				err = infer.Errorf(infer.InvalidArg, "'%s' is a link that leads nowhere in %s", clip(at), root)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) noPath(url string) error {
	return infer.Errorf(infer.InvalidArg, "Invalid \"url\" '%s': expected a path of the form %s/<hash>/model[/<subdir>]", clip(url), c.Root)
}

// clip bounds how much of a client's text an error repeats.
func clip(s string) string { return s[:min(len(s), 256)] }

// notPlain says that a part of a path has other characters than the platform gives it.
func notPlain(part string) bool {
	return part == "" || part == ".." || strings.ContainsFunc(part, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '.' && c != '_'
	})
}

// only is the model of a repository: the one folder, or the one ensemble that no other
// runs.
func only(repository string) (string, error) {
	folders, err := modelFolders(repository)
	if err != nil {
		return "", err
	}
	switch len(folders) {
	case 0:
		return "", infer.Errorf(infer.InvalidArg, "'%s' holds no model folder", repository)
	case 1:
		return folders[0], nil
	}
	var ensembles, steps []string
	for _, name := range folders {
		if cfg := config(filepath.Join(repository, name)); cfg.GetPlatform() == modelconfig.PlatformEnsemble || cfg.GetEnsembleScheduling() != nil {
			ensembles = append(ensembles, name)
			for _, s := range cfg.GetEnsembleScheduling().GetStep() {
				steps = append(steps, s.ModelName)
			}
		}
	}
	ensembles = slices.DeleteFunc(ensembles, func(name string) bool { return slices.Contains(steps, name) })
	if len(ensembles) != 1 {
		return "", infer.Errorf(infer.InvalidArg, "'%s' holds the folders %s: one model is expected, or one ensemble with its steps", repository, strings.Join(folders, ", "))
	}
	return ensembles[0], nil
}

// config is a folder's config, nil where there is none that can be read: then it is no
// ensemble's.
func config(dir string) *configpb.ModelConfig {
	path := filepath.Join(dir, "config.pbtxt")
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > modelconfig.MaxSize {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	cfg, _, err := modelconfig.Parse(path, data)
	if err != nil {
		return nil
	}
	return cfg
}
