package gateway

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/admission"
	"github.com/sluice-serve/sluice/gateway/stats"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds/rls"
)

// LimitsConfig is --limits-file and --limits-redis.
type LimitsConfig struct {
	File  string            // "": callers are not limited
	Redis map[string]string // settings of the Redis through which gateways share limits; empty: none
}

// Validate says what is wrong with the settings.
func (c *LimitsConfig) Validate() error {
	_, err := c.redis()
	return err
}

func (c *LimitsConfig) redis() (*admission.Redis, error) {
	if len(c.Redis) == 0 {
		return nil, nil
	}
	return admission.ParseRedis(c.Redis)
}

// openLimits puts the limits on callers before everything; g.limits stays nil where
// there are none.
func (g *Gateway) openLimits(ctx context.Context) error {
	if g.cfg.Limits.File == "" {
		return nil
	}
	redis, err := g.cfg.Limits.redis()
	if err != nil {
		return err
	}
	limits, err := admission.New(ctx, g.cfg.Limits.File, admission.Deps{Log: g.logger, Redis: redis, Known: g.models.Known, Reloaded: g.stats.Reload("limits").Done})
	if err != nil {
		return err
	}
	g.limits = limits
	g.stats.Add(stats.Limits(func() stats.LimitFigures { return limitFigures(limits.Figures()) }))
	return nil
}

func limitFigures(f admission.Figures) stats.LimitFigures {
	out := stats.LimitFigures{Rules: f.Rules, Meters: f.Meters, Shared: f.Shared, Connected: f.Connected, Asked: f.Asked, Failed: f.Failed, Late: f.Late,
		Foreign: f.Foreign}
	for _, r := range f.Refusals {
		out.Limits = append(out.Limits, stats.LimitRefusals{Rule: r.Rule, Kind: r.Kind.String(), Reason: string(r.Reason), Refused: r.Refused, Shadowed: r.Shadowed})
	}
	return out
}

// RateLimits answers Envoy's rate limit service by the rules of limits.
func RateLimits(limits *admission.Limits) *rls.Server {
	return rls.New(func(ctx context.Context, c rls.Call) rls.Verdict {
		q := admission.Query{Model: c.Model, Action: c.Action, Remote: c.Remote, Hits: c.Hits, Bytes: c.Bytes}
		if c.Principal != "" || len(c.Groups) > 0 {
			q.Principal = &infer.Principal{Name: c.Principal, Groups: c.Groups}
		}
		v := limits.Hit(ctx, q)
		return rls.Verdict{Over: v.Over, Rule: v.Rule, Rate: v.Rate, Left: v.Left, Retry: v.Retry, Reason: v.Reason}
	})
}
