package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Event is what happens to a model.
// Source: TRITONREPOAGENT_ActionType, tritonrepoagent.h of the original, without its
// prefix.
type Event string

// The events in the order of a life.
const (
	Load           Event = "LOAD"
	LoadComplete   Event = "LOAD_COMPLETE"
	LoadFail       Event = "LOAD_FAIL"
	Unload         Event = "UNLOAD"
	UnloadComplete Event = "UNLOAD_COMPLETE"
)

// Defaults of Config.
const (
	DefaultDirectory = "/opt/tritonserver/repoagents" // the original's
	DefaultTimeout   = 5 * time.Minute
)

// Config says where agents are.
type Config struct {
	Directory string        // --repoagent-directory: <Directory>/<name>/agent; "": DefaultDirectory
	Timeout   time.Duration // --repoagent-timeout-ms: of one event at one agent; 0: DefaultTimeout
	// Environ is the environment of executables ("NAME=value"); Environment makes it.
	Environ []string
}

// Agents runs agents. The zero value is not usable: New.
type Agents struct {
	cfg Config
	log *slog.Logger
}

// New makes Agents that log to log.
func New(cfg Config, log *slog.Logger) *Agents {
	if cfg.Directory == "" {
		cfg.Directory = DefaultDirectory
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Agents{cfg: cfg, log: log}
}

// Model is what agents are asked about.
type Model struct {
	Name     string
	Location string                // absolute path of the model's folder
	Config   *configpb.ModelConfig // as its config.pbtxt has it; read-only
	// Scratch makes an empty folder for an agent, which the Life removes at its end;
	// only Load needs it.
	Scratch func() (string, error)
}

// call is one event at one agent.
type call struct {
	event      Event
	agent      string
	model      Model
	location   string // of the model as the agents before left it
	scratch    string // a folder for this agent and load; "": none
	parameters map[string]string
}

// runner is one agent. It gives back the location that takes the model's place, "" for
// the same.
type runner interface {
	run(ctx context.Context, c *call) (location string, err error)
}

// member is an agent in a life.
type member struct {
	name       string
	runner     runner
	location   string // what it was handed at LOAD
	scratch    string
	parameters map[string]string
}

// Life is one load of a model and what follows it.
type Life struct {
	agents   *Agents
	model    Model
	location string
	asked    []member // those that got LOAD, in order

	mu   sync.Mutex // held while agents are told something, so that events stay in order
	last Event      // mu
}

// Load starts the life of a model: it asks all its agents in order. The life is nil
// where the config names none. After an error all agents that were asked have been told
// LOAD_FAIL, and nothing is left. Errors are InvalidArg, Unsupported or Unavailable, in
// the original's words where it has them.
func (a *Agents) Load(ctx context.Context, m Model) (*Life, error) {
	wanted := m.Config.GetModelRepositoryAgents().GetAgents()
	if len(wanted) == 0 {
		return nil, nil
	}
	l := &Life{agents: a, model: m, location: m.Location, last: Load}
	for _, w := range wanted {
		if err := l.load(ctx, w); err != nil {
			l.Failed(ctx)
			return nil, err
		}
	}
	return l, nil
}

// Check says what is wrong with a model's agents without asking any: one that is not
// there, or a checksum that its folder does not have. Checksums behind another agent are
// left out, since that one may change the folder.
func (a *Agents) Check(ctx context.Context, m Model) error {
	changed := false
	for _, w := range m.Config.GetModelRepositoryAgents().GetAgents() {
		r, err := a.find(w.GetName())
		if err != nil {
			return err
		}
		if _, builtin := r.(checksum); !builtin || changed {
			changed = true
			continue
		}
		if _, err := r.run(ctx, &call{event: Load, location: m.Location, parameters: w.GetParameters()}); err != nil {
			return err
		}
	}
	return nil
}

func (l *Life) load(ctx context.Context, w *configpb.ModelRepositoryAgents_Agent) error {
	r, err := l.agents.find(w.GetName())
	if err != nil {
		return err
	}
	one := member{name: w.GetName(), runner: r, location: l.location, parameters: w.GetParameters()}
	if _, process := r.(*process); process {
		if one.scratch, err = l.model.Scratch(); err != nil {
			return infer.Errorf(infer.Internal, "no folder for repo agent '%s': %w", one.name, err)
		}
	}
	l.asked = append(l.asked, one)
	location, err := l.tell(ctx, &one, Load)
	if err != nil || location == "" {
		return err
	}
	if l.location, err = inside(one.scratch, location); err != nil {
		return infer.Errorf(infer.InvalidArg, "repo agent '%s': %w", one.name, err)
	}
	return nil
}

// inside checks that an agent's new location is a folder that was made for it, or one
// below, and resolves it.
func inside(scratch, location string) (string, error) {
	home, err := filepath.EvalSymlinks(scratch)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(location)
	if err != nil {
		return "", fmt.Errorf("its location can't be used: %w", err)
	}
	rel, err := filepath.Rel(home, real)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("location '%s' is not in the folder that was made for it", location)
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return "", fmt.Errorf("location '%s' is no folder", location)
	}
	return real, nil
}

func (l *Life) tell(ctx context.Context, m *member, event Event) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.agents.cfg.Timeout)
	defer cancel()
	return m.runner.run(ctx, &call{event: event, agent: m.name, model: l.model, location: m.location,
		scratch: m.scratch, parameters: m.parameters})
}

// Location is the folder to load the model from: its own, or what an agent made of it.
// It stays until Unloaded or Failed.
func (l *Life) Location() string {
	if l == nil {
		return ""
	}
	return l.location
}

// Loaded tells the agents that the model serves. As in the original their errors are
// logged and change nothing.
func (l *Life) Loaded(ctx context.Context) { l.each(ctx, Load, LoadComplete) }

// Failed tells the agents that the load failed and removes their folders.
func (l *Life) Failed(ctx context.Context) {
	if l != nil && l.each(ctx, Load, LoadFail) {
		l.clean()
	}
}

// Unloading tells the agents that the model is about to be unloaded.
func (l *Life) Unloading(ctx context.Context) { l.each(ctx, LoadComplete, Unload) }

// Unloaded tells the agents that it is, and removes their folders. Those that did not
// hear that it was about to be hear that first.
func (l *Life) Unloaded(ctx context.Context) {
	l.Unloading(ctx)
	if l != nil && l.each(ctx, Unload, UnloadComplete) {
		l.clean()
	}
}

// each tells all that were asked. It does nothing, and says false, when the event can't
// follow the last one. A context that is over does not keep an agent from hearing how
// the life ends: the timeout alone bounds it.
func (l *Life) each(ctx context.Context, after, event Event) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != after {
		return false
	}
	l.last = event
	ctx = context.WithoutCancel(ctx)
	order := slices.Clone(l.asked)
	if event != Unload {
		slices.Reverse(order)
	}
	for i := range order {
		if _, err := l.tell(ctx, &order[i], event); err != nil {
			l.agents.log.Error(fmt.Sprintf("repo agent '%s' returns an error on %s of model '%s'", order[i].name, event, l.model.Name), "error", err)
		}
	}
	return true
}

func (l *Life) clean() {
	var errs []error
	for i := range l.asked {
		if l.asked[i].scratch != "" {
			errs = append(errs, os.RemoveAll(l.asked[i].scratch))
		}
	}
	if err := errors.Join(errs...); err != nil {
		l.agents.log.Error(fmt.Sprintf("folders of the repo agents of model '%s' are left", l.model.Name), "error", err)
	}
}
