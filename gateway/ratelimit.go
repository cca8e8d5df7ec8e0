package gateway

import (
	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/build"
	"github.com/sluice-serve/sluice/infer"
)

// RateLimitConfig is --rate-limit and --rate-limit-resource.
type RateLimitConfig struct {
	On        bool // execution_count
	Resources []ratelimit.Resource
}

// limiter is nil where the models' rate_limiter settings are not looked at.
func (c *RateLimitConfig) limiter() *ratelimit.Limiter {
	if !c.On {
		return nil
	}
	return ratelimit.New(c.Resources)
}

// schedule makes a version's scheduler, which asks the rate limiter where its instances
// need something. The scheduler's Drain takes their needs out again.
func (g *Gateway) schedule(m *repository.Model, deps schedule.Deps) (schedule.Scheduler, error) {
	if g.limiter == nil {
		return build.FromConfig(m.Config, m.Version, deps)
	}
	needs := ratelimit.Instances(m.Config)
	if len(needs) != len(deps.Executors) {
		return nil, infer.Errorf(infer.Internal, "model '%s' has %d instances, its config %d", m.Name, len(deps.Executors), len(needs))
	}
	member, err := g.limiter.Register(needs)
	if err != nil {
		return nil, err
	}
	if member == nil { // they need nothing
		return build.FromConfig(m.Config, m.Version, deps)
	}
	deps.Limiter = member
	s, err := build.FromConfig(m.Config, m.Version, deps)
	if err != nil {
		member.Close()
		return nil, err
	}
	return s, nil
}
