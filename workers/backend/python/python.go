package python

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/pyenv"
)

// openRequests is how many requests of an instance may be open when it takes its next batch.
const openRequests = 1024

// runtimeFile is what makes a folder a Python-based backend.
const runtimeFile = "model.py"

// python is the backend.
type python struct {
	options options
	log     *slog.Logger
	watch   *cancelWatch

	children  *children
	described described // processes that have completed a config
	// spawn starts a process that serves channels, each for an instance; tests have others.
	spawn func(ctx context.Context, m *model, name string, all []*channel.Channel) (process, error)

	mu     sync.Mutex
	runner string // guarded by mu: the folder of the runner; "" until it was laid down
}

// New is a backend.Factory.
func New(opts map[string]string) (backend.Backend, error) {
	o, err := readOptions(opts)
	if err != nil {
		return nil, err
	}
	p := &python{options: o, log: slog.Default(), watch: newCancelWatch(), children: newChildren()}
	p.spawn = p.spawnRunner
	return p, nil
}

// Info fits backend.Backend.
func (p *python) Info() backend.Info {
	return backend.Info{
		GPU:            true, // models place themselves
		OpenRequests:   openRequests,
		WholeBatches:   true,
		Simultaneous:   true,
		Patches:        true,
		RequestContext: true,
		Formats:        []*worker.ModelFormat{{Filename: runtimeFile}},
		Runtimes:       []*worker.Runtime{{File: runtimeFile, Shared: true}},
		Engine:         &worker.Engine{Name: "Python", Path: pyenv.Default(p.options.python), Get: "a package of this host, or an environment with the model"},
	}
}

// Close fits backend.Backend.
func (p *python) Close() error {
	p.watch.close()
	err := p.described.close()
	p.children.close()
	return err
}

// Load fits backend.Backend.
func (p *python) Load(_ context.Context, spec backend.Spec) (backend.Model, error) {
	m, err := p.newModel(spec)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// runnerFolder is where the runner's source lies, once it was laid down and found whole.
func (p *python) runnerFolder() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	root, err := p.options.cacheFolder()
	if err == nil {
		p.runner, err = layRunner(root)
	}
	if err != nil {
		return "", infer.Errorf(infer.Internal, "the source that runs Python models can't be laid down: %w", err)
	}
	return p.runner, nil
}

// text is the text of an option of a model's parameters.
func (m *model) text(name string) string { return m.spec.Config.GetParameters()[name].GetStringValue() }

// instanceName is the name by which texts call an instance.
func instanceName(s backend.InstanceSpec, m *model) string {
	if s.Name != "" {
		return s.Name
	}
	return fmt.Sprintf("%s_0", m.spec.Name)
}
