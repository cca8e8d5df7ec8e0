package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/local"
	"github.com/sluice-serve/sluice/cache/redis"
	"github.com/sluice-serve/sluice/gateway/control"
	"github.com/sluice-serve/sluice/gateway/repository"
)

// CacheConfig is --cache-config: the cache's name → setting → value. Local and redis
// may both be given: the local one stands in front then.
type CacheConfig map[string]map[string]string

// Validate says what is wrong with the settings.
func (c CacheConfig) Validate() error {
	_, _, err := c.parse()
	return err
}

// parse gives the configs that there are, nil for the others.
func (c CacheConfig) parse() (*local.Config, *redis.Config, error) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		known := map[string][]string{"local": local.Settings(), "redis": redis.Settings()}[name]
		if known == nil {
			return nil, nil, fmt.Errorf("--cache-config: there is no cache '%s': want local or redis", name)
		}
		for _, setting := range slices.Sorted(maps.Keys(c[name])) {
			if !slices.Contains(known, setting) {
				return nil, nil, fmt.Errorf("--cache-config: the cache '%s' has no setting '%s': want one of %v", name, setting, known)
			}
		}
	}
	var l *local.Config
	var r *redis.Config
	if settings, ok := c["local"]; ok {
		conf, err := local.ParseConfig(settings)
		if err != nil {
			return nil, nil, fmt.Errorf("--cache-config: %w", err)
		}
		l = &conf
	}
	if settings, ok := c["redis"]; ok {
		conf, err := redis.ParseConfig(settings)
		if err != nil {
			return nil, nil, fmt.Errorf("--cache-config: %w", err)
		}
		r = &conf
	}
	return l, r, nil
}

// spareGarbage is how much garbage a large local cache may have beside it.
const spareGarbage = 256 << 20

// GCPercent is how much the heap may grow between two collections, at most as much as
// given: entries of a local cache live on the heap, and a share of them is a lot.
func (c CacheConfig) GCPercent(most int) int {
	l, _, err := c.parse()
	if err != nil || l == nil {
		return most
	}
	return int(max(25, min(int64(most), spareGarbage*100/l.Size)))
}

// repository is what the repository is told of the cache.
func (c CacheConfig) repository() repository.CacheConfig {
	_, shared := c["redis"]
	return repository.CacheConfig{On: len(c) > 0, Shared: shared}
}

// openCache makes the response cache; g.cache stays nil where there is none.
func (g *Gateway) openCache(ctx context.Context) error {
	l, r, err := g.cfg.Cache.parse()
	if err != nil || l == nil && r == nil {
		return err
	}
	var levels cache.Tiers
	if l != nil {
		levels = append(levels, local.New(*l))
	}
	if r != nil {
		shared, err := redis.New(ctx, *r, g.logger)
		if err != nil {
			return err
		}
		levels = append(levels, shared)
	}
	var level cache.Level = levels
	if len(levels) == 1 {
		level = levels[0]
	}
	g.cache = cache.NewStep(level, g.responses)
	return nil
}

// forget is repository.Deps.Forget.
func (g *Gateway) forget(ctx context.Context, load uint64) {
	if g.cache == nil {
		return
	}
	if err := g.cache.Drop(ctx, load); err != nil {
		g.logger.Warn("response cache: " + err.Error())
	}
}

// purger is the cache for control: a nil interface where there is none.
func (g *Gateway) purger() control.Cache {
	if g.cache == nil {
		return nil
	}
	return g.cache
}
