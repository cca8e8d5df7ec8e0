package repository

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// ConfigFile is the name of a model's config.
const ConfigFile = "config.pbtxt"

// Folder is a model folder in a repository.
type Folder struct {
	Name string
	Dir  string   // absolute
	Also []string // other folders of the same name: none of them can be served

	// Namespace is the repository, where namespaces are on.
	Namespace string
	// Config replaces the config file; nil: it is read.
	Config *configpb.ModelConfig
	// ConfigName chooses configs/<ConfigName>.pbtxt over config.pbtxt, where it is
	// there. Source: --model-config-name.
	ConfigName string
	// Renamed: Name is none that the config has to have; see Register.
	Renamed bool
}

// configFolder holds the configs that --model-config-name chooses from.
const configFolder = "configs"

func (f *Folder) key() key { return key{f.Namespace, f.Name} }

// ensemble says that the model is one, as far as its config can be read.
func (f *Folder) ensemble() bool {
	if f.Dir == "" { // all of it comes with a call
		return false
	}
	cfg, _, err := f.readConfig(true)
	return err == nil && isEnsemble(cfg)
}

func isEnsemble(cfg *configpb.ModelConfig) bool {
	return cfg.GetEnsembleScheduling() != nil || cfg.GetPlatform() == modelconfig.PlatformEnsemble
}

// Find lists the model folders of all repositories by name. What can't be read is
// joined in the error; the folders that could be are returned with it. Folders whose
// names begin with a dot are no models. A repository that is given again is one.
func Find(paths []string) ([]Folder, error) {
	var errs []error
	found, seen := map[string]*Folder{}, map[string]bool{}
	for _, path := range paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if seen[abs] {
			continue
		}
		seen[abs] = true
		names, err := subfolders(abs)
		if err != nil {
			errs = append(errs, fmt.Errorf("failed to poll model repository '%s': %w", path, err))
		}
		for _, name := range names {
			dir := filepath.Join(abs, name)
			if f, ok := found[name]; ok {
				f.Also = append(f.Also, dir)
				continue
			}
			found[name] = &Folder{Name: name, Dir: dir}
		}
	}
	folders := make([]Folder, 0, len(found))
	for _, f := range found {
		folders = append(folders, *f)
	}
	slices.SortFunc(folders, func(a, b Folder) int { return strings.Compare(a.Name, b.Name) })
	return folders, errors.Join(errs...)
}

// Folders is Find for the repositories of cfg, with its named configs and namespaces.
func Folders(cfg *Config) ([]Folder, error) {
	if !cfg.Namespacing {
		folders, err := Find(cfg.Paths)
		for i := range folders {
			folders[i].ConfigName = cfg.ConfigName
		}
		return folders, err
	}
	var all []Folder
	var errs []error
	for _, path := range cfg.Paths {
		folders, err := Find([]string{path})
		errs = append(errs, err)
		for _, f := range folders {
			f.Namespace, f.ConfigName = path, cfg.ConfigName
			all = merge(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b Folder) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Join(errs...)
}

// subfolders lists folders, also those behind symbolic links, by name.
func subfolders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, plain(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// plain takes the path out of an error of package os: texts that reach clients name
// no folders of the machine.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// ParseVersion reads the name of a version folder: a positive number that does not
// begin with 0.
func ParseVersion(name string) (int64, bool) {
	if name == "" || name[0] < '1' || name[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil
}

// Versions lists the version folders of a model, ascending.
func (f *Folder) Versions() ([]int64, error) {
	names, err := subfolders(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read the model folder: %w", err)
	}
	var versions []int64
	for _, name := range names {
		if n, ok := ParseVersion(name); ok {
			versions = append(versions, n)
		}
	}
	slices.Sort(versions)
	return versions, nil
}

// choose keeps the versions that the policy wants, ascending. absent are those that it
// names and that are not there.
// Source: message ModelVersionPolicy.
func choose(policy *configpb.ModelVersionPolicy, existing []int64) (chosen, absent []int64) {
	switch p := policy.GetPolicyChoice().(type) {
	case *configpb.ModelVersionPolicy_All_:
		return existing, nil
	case *configpb.ModelVersionPolicy_Specific_:
		for _, v := range p.Specific.Versions {
			if slices.Contains(existing, v) {
				chosen = append(chosen, v)
			} else {
				absent = append(absent, v)
			}
		}
		slices.Sort(chosen)
		return slices.Compact(chosen), absent
	}
	n := min(int64(policy.GetLatest().GetNumVersions()), int64(len(existing)))
	return existing[len(existing)-int(n):], nil
}

// files lists a version folder for completion; nil where it can't be read.
func (f *Folder) files(version int64) []modelconfig.File {
	entries, err := os.ReadDir(filepath.Join(f.Dir, strconv.FormatInt(version, 10)))
	if err != nil {
		return nil
	}
	var files []modelconfig.File
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(f.Dir, strconv.FormatInt(version, 10), e.Name()))
		if err == nil {
			files = append(files, modelconfig.File{Name: e.Name(), Dir: info.IsDir()})
		}
	}
	return files
}

// Read reads a file of the model's folder that a config names. It is the one way in
// which such names become files: a name that is absolute, has "..", NUL or a backslash,
// or leads out through a symbolic link, is InvalidArg, as is what is longer than limit;
// what is not there is NotFound.
func (f *Folder) Read(name string, limit int64) ([]byte, error) {
	if !modelconfig.SafePath(name) {
		return nil, infer.Errorf(infer.InvalidArg, "file path '%s' is outside model directory", name)
	}
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read the model folder: %w", plain(err))
	}
	defer root.Close()
	info, err := root.Stat(name) // opening a pipe would wait for its writer
	if err == nil && !info.Mode().IsRegular() {
		return nil, infer.Errorf(infer.InvalidArg, "'%s' is no plain file", name)
	}
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, infer.Errorf(infer.NotFound, "failed to open text file for read '%s': no such file", name)
	}
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "failed to open text file for read '%s': %w", name, plain(err))
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "failed to read '%s': %w", name, plain(err))
	}
	if int64(len(data)) > limit {
		return nil, infer.Errorf(infer.InvalidArg, "'%s' has more than %d bytes", name, limit)
	}
	return data, nil
}

// configFile is the name of the config in the folder.
func (f *Folder) configFile() string {
	if f.ConfigName != "" && modelconfig.SafePath(f.ConfigName) && !strings.Contains(f.ConfigName, "/") {
		name := configFolder + "/" + f.ConfigName + ".pbtxt"
		if info, err := os.Stat(filepath.Join(f.Dir, name)); err == nil && info.Mode().IsRegular() {
			return name
		}
	}
	return ConfigFile
}

// readConfig reads and parses the config. Where there is none and it may be completed,
// the config is empty and the source nil.
func (f *Folder) readConfig(complete bool) (*configpb.ModelConfig, *modelconfig.Source, error) {
	cfg, src, err := f.writtenConfig(complete)
	if err == nil && f.Renamed {
		cfg.Name = f.Name
	}
	return cfg, src, err
}

func (f *Folder) writtenConfig(complete bool) (*configpb.ModelConfig, *modelconfig.Source, error) {
	if f.Config != nil {
		return proto.CloneOf(f.Config), nil, nil
	}
	name := f.configFile()
	path := filepath.Join(f.Dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && complete {
		return &configpb.ModelConfig{}, nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		return nil, nil, infer.Errorf(infer.InvalidArg, "%s is no plain file", name)
	}
	var data []byte
	if err == nil && info.Size() <= modelconfig.MaxSize {
		data, err = os.ReadFile(path)
	}
	switch {
	case err != nil:
		return nil, nil, infer.Errorf(infer.NotFound, "failed to open text file for read %s: %w", name, plain(err))
	case info.Size() > modelconfig.MaxSize:
		return nil, nil, infer.Errorf(infer.InvalidArg, "%s has %d bytes, the most is %d", name, info.Size(), modelconfig.MaxSize)
	}
	return modelconfig.Parse(f.Name+"/"+name, data)
}
