package pyenv

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// ModelDirectory stands for the model's folder in EXECUTION_ENV_PATH.
const ModelDirectory = "$$TRITON_MODEL_DIRECTORY"

// Request is what is known of a model.
type Request struct {
	Python     string // parameter PYTHON: a path, or a version as 3.12; "": none
	Env        string // parameter EXECUTION_ENV_PATH: a folder or an archive; "": none
	Default    string // the interpreter of models that name none; "": see Resolve
	ModelDir   string // absolute
	VersionDir string // absolute
	Cache      string // absolute: where environments are laid down
	Install    bool   // requirements.txt is installed
}

// Environment is where a model's process runs.
type Environment struct {
	Interpreter string   // absolute
	Variables   []string // name=value, set beside the worker's
	Warnings    []string // what the model's folder has that does nothing
}

// version is what PYTHON may be in place of a path.
var version = regexp.MustCompile(`^3\.\d{1,2}t?$`)

// Resolve finds a model's interpreter: PYTHON, else that of its environment, else Default, else
// python/bin/python3 beside the worker's program, else python3 of the worker's PATH. It unpacks
// and installs what is not there yet, which may take minutes: ctx bounds it. variables are those
// of the process to be, and of all programs that this runs. Errors are the model's owner's to read.
func Resolve(ctx context.Context, q Request, variables []string) (*Environment, error) {
	e := &Environment{Interpreter: q.Default}
	if e.Interpreter == "" {
		e.Interpreter = beside()
	}
	if q.Env != "" {
		folder, err := q.folder(ctx, variables)
		if err != nil {
			return nil, err
		}
		if e.Interpreter, err = interpreterOf(folder); err != nil {
			return nil, err
		}
		if e.Variables, err = activate(ctx, folder, variables); err != nil {
			return nil, err
		}
	}
	switch {
	case version.MatchString(q.Python):
		e.Interpreter = "python" + q.Python
	case q.Python != "":
		e.Interpreter = q.inModel(q.Python)
	}
	path, err := exec.LookPath(e.Interpreter)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "there is no Python interpreter '%s'", e.Interpreter)
	}
	e.Interpreter = path
	if err := q.requirements(ctx, e, variables); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(q.ModelDir, "triton_python_backend_stub")); err == nil {
		e.Warnings = append(e.Warnings,
			"triton_python_backend_stub is not used: no stub is compiled for a version of Python here")
	}
	return e, probe(ctx, e, variables)
}

// inModel is a path that a config names.
func (q *Request) inModel(path string) string {
	return strings.ReplaceAll(path, ModelDirectory, q.ModelDir)
}

// folder is the environment's folder.
func (q *Request) folder(ctx context.Context, variables []string) (string, error) {
	path, err := filepath.Abs(q.inModel(q.Env))
	if err != nil {
		return "", infer.Errorf(infer.InvalidArg, "EXECUTION_ENV_PATH '%s': %w", q.Env, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", infer.Errorf(infer.InvalidArg, "EXECUTION_ENV_PATH '%s' is not there", q.Env)
	}
	if st.IsDir() {
		return path, nil
	}
	if !st.Mode().IsRegular() {
		return "", infer.Errorf(infer.InvalidArg, "EXECUTION_ENV_PATH '%s' is neither a folder nor an archive", q.Env)
	}
	folder, err := unpacked(ctx, path, q.Cache, variables)
	if err != nil {
		return "", infer.Errorf(infer.InvalidArg, "EXECUTION_ENV_PATH '%s': %w", q.Env, err)
	}
	return folder, nil
}

// interpreterOf is the interpreter in an environment's folder.
func interpreterOf(folder string) (string, error) {
	for _, name := range []string{"python", "python3"} {
		path := filepath.Join(folder, "bin", name)
		if st, err := os.Stat(path); err == nil && !st.IsDir() {
			return path, nil
		}
	}
	return "", infer.Errorf(infer.InvalidArg, "the model's environment has no bin/python")
}

// Default is the path of the interpreter of a model that names none; "" where there is none. python is what --backend-config
// says of it; "": nothing.
func Default(python string) string {
	path, err := exec.LookPath(cmp.Or(python, beside()))
	if err != nil {
		return ""
	}
	return path
}

// beside is the interpreter that came with the worker, or that of PATH.
func beside() string {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), "python", "bin", "python3")
		if st, err := os.Stat(path); err == nil && !st.IsDir() {
			return path
		}
	}
	return "python3"
}
