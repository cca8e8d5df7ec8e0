package python

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/pyenv"
)

// argument is the runner's one argument.
type argument struct {
	Protocol int           `json:"protocol"`
	Channels []channelJSON `json:"channels"`
}

// channelJSON is a channel by the numbers of inherited descriptors.
type channelJSON struct {
	Memory   int            `json:"memory"`
	Exchange int            `json:"exchange"`
	Ready    int            `json:"ready"`
	Events   []int          `json:"events"`
	Areas    map[string]int `json:"areas"`
}

// firstInherited is the number of the first descriptor that a process inherits beside its pipes.
const firstInherited = 3

// spawnRunner starts a process for so many instances. What it inherits stays the caller's.
func (p *python) spawnRunner(ctx context.Context, m *model, name string, all []*channel.Channel) (process, error) {
	var files []*os.File
	inherit := func(f *os.File) int {
		files = append(files, f)
		return firstInherited + len(files) - 1
	}
	areas := map[string]int{}
	if arenas := m.arenas(); arenas != nil {
		requests, answers, err := arenas.Files()
		if err != nil {
			return nil, err
		}
		defer requests.Close() // the process has its own
		defer answers.Close()
		areas[strconv.Itoa(channel.InInputs)] = inherit(requests)
		areas[strconv.Itoa(channel.InAnswer)] = inherit(answers)
	}
	said := argument{Protocol: channel.Protocol}
	for _, c := range all {
		own := c.Files()
		ch := channelJSON{Memory: inherit(own[0]), Exchange: inherit(own[1]), Ready: inherit(own[2]), Areas: areas}
		for _, f := range own[3:] {
			ch.Events = append(ch.Events, inherit(f))
		}
		said.Channels = append(said.Channels, ch)
	}
	arg, err := json.Marshal(said)
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "%w", err)
	}
	variables := environment(os.Environ(), p.options.passed)
	if !slices.ContainsFunc(variables, func(v string) bool { return strings.HasPrefix(v, "PYTHONPYCACHEPREFIX=") }) {
		// Compiled files beside a model's source would change its folder, which may be polled.
		cache, err := p.options.cacheFolder()
		if err != nil {
			return nil, infer.Errorf(infer.Internal, "there is no folder for compiled files: %w", err)
		}
		variables = append(variables, "PYTHONPYCACHEPREFIX="+filepath.Join(cache, "pycache"))
	}
	env, err := p.resolve(ctx, m, variables)
	if err != nil {
		return nil, err
	}
	return p.children.start(childSpec{
		path: env.Interpreter, args: []string{"-u", filepath.Join(m.runner, "runner.py"), string(arg)},
		env: pyenv.With(variables, env.Variables), files: files, log: m.log.With("instance", name),
		level: m.limits.output})
}

// resolve finds the interpreter and the environment of a model, and says what its folder has that
// does nothing.
func (p *python) resolve(ctx context.Context, m *model, variables []string) (*pyenv.Environment, error) {
	cache, err := p.options.cacheFolder()
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "there is no folder for environments: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, m.limits.initialize)
	defer stop()
	env, err := pyenv.Resolve(ctx, pyenv.Request{
		Python: m.text("PYTHON"), Env: m.text("EXECUTION_ENV_PATH"), Default: p.options.python, ModelDir: m.spec.ModelDir,
		VersionDir: m.versionDir(), Cache: cache, Install: p.options.install}, variables)
	if err != nil {
		return nil, err
	}
	m.warn.Do(func() {
		for _, text := range env.Warnings {
			m.log.Warn(text)
		}
	})
	return env, nil
}
