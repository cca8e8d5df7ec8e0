package control

import (
	"context"
	"strconv"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Cache is the response cache as control needs it; cache.Step fits it.
type Cache interface {
	Purge(ctx context.Context, s cache.Selector) (int64, error)
}

// PurgeCache removes the answers of a model, of one version of it, or with a tag; what
// is empty selects all. It says how many there were. Unsupported: there is no cache.
func (s *Server) PurgeCache(ctx context.Context, model, version, tag string) (int64, error) {
	if s.cache == nil {
		return 0, infer.Errorf(infer.Unsupported, "there is no response cache: the server was started without --cache-config")
	}
	if version != "" {
		if model == "" {
			return 0, infer.Errorf(infer.InvalidArg, "purging version '%s' needs its model", version)
		}
		n, err := strconv.ParseInt(version, 10, 64)
		if err != nil || n < 1 {
			return 0, infer.Errorf(infer.InvalidArg, "version '%s' of model '%s' is no number from 1 on", version, model)
		}
		version = strconv.FormatInt(n, 10)
	}
	return s.cache.Purge(ctx, cache.Selector{Model: model, Version: version, Tag: tag})
}
