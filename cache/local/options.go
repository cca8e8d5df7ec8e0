package local

import (
	"strconv"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Settings lists the names of the settings.
func Settings() []string { return []string{"size", "ttl"} }

// ParseConfig reads the settings of --cache-config: size in bytes, ttl as
// cache.ParseTTL has it. Its errors are InvalidArg.
func ParseConfig(settings map[string]string) (Config, error) {
	var c Config
	size, ok := settings["size"]
	if !ok {
		// Source: the original's words.
		return c, infer.Errorf(infer.InvalidArg, "Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
	}
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 1 {
		return c, infer.Errorf(infer.InvalidArg, "Failed to initialize LocalCache: size is '%s', want bytes from 1 on", size)
	}
	c.Size = n
	if ttl, ok := settings["ttl"]; ok {
		if c.TTL, err = cache.ParseTTL(ttl); err != nil {
			return c, infer.Errorf(infer.InvalidArg, "Failed to initialize LocalCache: ttl: %w", err)
		}
	}
	return c, nil
}
