package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/cloud"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// agents are repository agents as the repository wants them.
type agents struct{ *agent.Agents }

// Load asks the model's agents; see repository.Agents.
func (a agents) Load(ctx context.Context, m repository.AgentModel) (repository.AgentRun, error) {
	life, err := a.Agents.Load(ctx, agent.Model{Name: m.Name, Location: m.Dir, Config: m.Config, Scratch: m.Scratch})
	if err != nil {
		return nil, err
	}
	return agentRun{life, m.Dir}, nil
}

type agentRun struct {
	life *agent.Life // nil: the model names no agents
	dir  string
}

func (r agentRun) Dir() string {
	if r.life == nil {
		return r.dir
	}
	return r.life.Location()
}

// Tell hands an event on; the agents log their errors themselves.
func (r agentRun) Tell(ctx context.Context, event repository.AgentEvent) error {
	switch event {
	case repository.EventLoadComplete:
		r.life.Loaded(ctx)
	case repository.EventLoadFail:
		r.life.Failed(ctx)
	case repository.EventUnload:
		r.life.Unloading(ctx)
	case repository.EventUnloadComplete:
		r.life.Unloaded(ctx)
	default:
		return fmt.Errorf("the agents of a model can't be told '%s'", event)
	}
	return nil
}

// newStore makes the store of repositories in clouds.
func newStore(cfg *Config, log *slog.Logger) *cloud.Store {
	c := cfg.Repository.Cloud
	c.Log = log
	if c.Env == nil {
		c.Env = func(string) (string, bool) { return "", false }
	}
	if c.Open == nil {
		c.Open = func(_ context.Context, l cloud.Location, _ cloud.Credential) (*cloud.Bucket, error) {
			return nil, fmt.Errorf("this program was made without the clouds' libraries; %s can't be opened", l)
		}
	}
	return cloud.New(c)
}

// bringHere replaces repositories in clouds by folders of this machine, for what only
// looks at a repository once. Errors of models that could not be copied are joined; the
// paths are given with them.
func bringHere(ctx context.Context, s *cloud.Store, paths []string) (local []string, err error) {
	var errs []error
	for _, path := range paths {
		if s.Remote(path) {
			if path, err = s.Sync(ctx, path, ""); err != nil {
				errs = append(errs, err)
			}
			if path == "" {
				continue
			}
		}
		local = append(local, path)
	}
	return local, errors.Join(errs...)
}

// checkAgents is what `sluice check` asks about agents; none is started.
func checkAgents(cfg *Config) func(ctx context.Context, name, dir string, c *configpb.ModelConfig) error {
	a := agent.New(cfg.Repository.Agents, slog.New(slog.DiscardHandler))
	return func(ctx context.Context, name, dir string, c *configpb.ModelConfig) error {
		return a.Check(ctx, agent.Model{Name: name, Location: dir, Config: c})
	}
}
