package gateway

import (
	"fmt"

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

// options are its rows in the start-up table, with the original's names.
func (c *RateLimitConfig) options() [][]string {
	if !c.On {
		return [][]string{{"rate_limit", "OFF"}}
	}
	rows := [][]string{{"rate_limit", "EXEC_COUNT"}}
	for i, r := range c.Resources {
		row := []string{fmt.Sprintf("rate_limit_resource[%d]", i), fmt.Sprintf("%s: %d on each device", r.Name, r.Count)}
		if r.Device != ratelimit.Every {
			row[1] = fmt.Sprintf("%s: %d on device %d", r.Name, r.Count, r.Device)
		}
		rows = append(rows, row)
	}
	return rows
}

// schedule makes a version's scheduler, which asks the rate limiter where its instances
// need something. The scheduler's Drain takes their needs out again.
func (g *Gateway) schedule(m *repository.Model, deps schedule.Deps) (schedule.Scheduler, error) {
	if g.limiter == nil {
		return build.FromConfig(m.Scheduled, m.Version, deps)
	}
	needs := ratelimit.Instances(m.Config)
	if len(needs) != len(deps.Executors) {
		return nil, infer.Errorf(infer.Internal, "model '%s' has %d instances, its config %d",
			m.Name, len(deps.Executors), len(needs))
	}
	if ratelimit.Needed(needs) {
		deps.Limiter = func(granted func(i int)) (schedule.Limiter, error) { return g.limiter.Register(needs, granted) }
	}
	return build.FromConfig(m.Scheduled, m.Version, deps)
}
