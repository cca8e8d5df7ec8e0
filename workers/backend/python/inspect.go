package python

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/pyenv"
)

// inspector reads a model's file with the model's own interpreter, and executes nothing of it.
//
//go:embed source_facts.py
var inspector string

// inspectTime bounds it.
const inspectTime = 30 * time.Second

// hooksInOrder are the functions of a model that are called.
var hooksInOrder = []string{completeHook, "initialize", "execute", "is_ready", "finalize"}

// inspected is what the inspector says.
type inspected struct {
	Python  string
	Error   string          // why the file is no Python
	Line    int             // where; 0: somewhere
	Model   bool            // there is a class TritonPythonModel
	Hooks   map[string]bool // those that it has, and whether they are async
	Unknown bool            // it may have more, from a base class of another file
	Missing []struct {
		Name string
		Line int
	}
}

// inspect says what a load would meet.
func (m *model) inspect(ctx context.Context) (*backend.Description, error) {
	variables := environment(os.Environ(), m.backend.options.passed)
	env, err := m.backend.resolve(ctx, m, variables)
	if err != nil {
		return nil, err
	}
	args := append([]string{"-c", inspector, m.file}, m.path()...)
	out, err := pyenv.Run(ctx, inspectTime, pyenv.With(variables, env.Variables), env.Interpreter, args...)
	var said inspected
	if err == nil {
		err = json.Unmarshal(out, &said)
	}
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "'%s' can't be looked at: %w", m.relative(m.file), err)
	}
	d := &backend.Description{Findings: said.findings(m, env)}
	d.Remarks = append(d.Remarks, fmt.Sprintf("Python %s, %s", said.Python, env.Interpreter))
	if text := said.hooks(); text != "" {
		d.Remarks = append(d.Remarks, m.relative(m.file)+" has "+text)
	}
	if _, ok := said.Hooks[completeHook]; ok {
		d.Remarks = append(d.Remarks, "a load asks "+completeHook+" for what the config leaves out")
	}
	d.Remarks = append(d.Remarks, env.Warnings...)
	return d, nil
}

// findings are why a load would fail.
func (s *inspected) findings(m *model, env *pyenv.Environment) (all []string) {
	file := m.relative(m.file)
	switch _, executes := s.Hooks["execute"]; {
	case s.Error != "" && s.Line > 0:
		return []string{fmt.Sprintf("%s, line %d: %s", file, s.Line, s.Error)}
	case s.Error != "":
		return []string{fmt.Sprintf("%s: %s", file, s.Error)}
	case !s.Model:
		all = append(all, file+" has no class TritonPythonModel")
	case !executes && !s.Unknown && s.Hooks != nil:
		all = append(all, "class TritonPythonModel of "+file+" has no function execute")
	}
	for _, p := range s.Missing {
		all = append(all, fmt.Sprintf("%s, line %d: there is no package '%s' for %s", file, p.Line, p.Name, env.Interpreter))
	}
	return all
}

// hooks is a list of the model's functions.
func (s *inspected) hooks() string {
	var all []string
	for _, name := range hooksInOrder {
		if async, ok := s.Hooks[name]; ok && async {
			all = append(all, name+" (async)")
		} else if ok {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}
