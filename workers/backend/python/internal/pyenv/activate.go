package pyenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

const (
	activateTime = 30 * time.Second
	installTime  = 20 * time.Minute
)

// activate is what sourcing an environment's bin/activate changes in the variables; nothing where
// there is none.
func activate(ctx context.Context, folder string, variables []string) ([]string, error) {
	script := filepath.Join(folder, "bin", "activate")
	if _, err := os.Stat(script); err != nil {
		return nil, nil
	}
	out, err := Run(ctx, activateTime, variables, "bash", "-c", `source "$0" >/dev/null && env -0`, script)
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "bin/activate of the model's environment failed: %w", err)
	}
	var changed []string
	for v := range bytes.SplitSeq(out, []byte{0}) {
		name, _, ok := strings.Cut(string(v), "=")
		if ok && !slices.Contains(variables, string(v)) && !slices.Contains([]string{"_", "SHLVL", "PWD", "OLDPWD",
			"PS1"}, name) {
			changed = append(changed, string(v))
		}
	}
	return changed, nil
}

// requirements installs the model's requirements.txt into an environment of its own, where that is
// allowed, and has e be that.
func (q *Request) requirements(ctx context.Context, e *Environment, variables []string) error {
	var file string
	for _, dir := range []string{q.VersionDir, q.ModelDir} {
		if st, err := os.Stat(filepath.Join(dir, "requirements.txt")); err == nil && st.Mode().IsRegular() {
			file = filepath.Join(dir, "requirements.txt")
			break
		}
	}
	if file == "" {
		return nil
	}
	if !q.Install {
		e.Warnings = append(e.Warnings,
			"requirements.txt is not installed; --backend-config=python,install=yes does that")
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "requirements.txt can't be read: %w", err)
	}
	sum := sha256.Sum256([]byte(identity(e.Interpreter) + "\n" + string(text)))
	folder := filepath.Join(q.Cache, "envs", "requirements-"+hex.EncodeToString(sum[:]))
	err = once(ctx, folder, func(string) error { return nil }, func() error {
		// An environment can't be moved, so it is made under its name.
		if _, err := Run(ctx, installTime, With(variables, e.Variables), e.Interpreter, "-m", "venv", "--system-site-packages",
			folder); err != nil {
			return err
		}
		_, err := Run(ctx, installTime, With(variables, e.Variables), filepath.Join(folder, "bin", "python"), "-m", "pip",
			"--disable-pip-version-check",
			"install", "--no-input", "-r", file)
		return err
	})
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "requirements.txt could not be installed: %w", err)
	}
	e.Interpreter = filepath.Join(folder, "bin", "python")
	return nil
}
