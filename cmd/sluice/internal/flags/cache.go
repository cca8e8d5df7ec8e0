package flags

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/cache/local"
	"github.com/sluice-serve/sluice/cache/redis"
	"github.com/sluice-serve/sluice/gateway"
)

func (s *Serve) cache() []flag {
	return []flag{
		{name: "cache-config", arg: "string,string=string", repeat: true, help: "Response cache for models with response_cache: " +
			"local,size=BYTES[,ttl=SECONDS] or redis,host=HOST,port=PORT[,…]; several settings in one flag or each in its own. With both, " +
			"local stands in front of redis.", set: s.cacheConfig},
		{name: "cache-directory", arg: "string", help: "Caches are part of sluice; nothing is read from there.", set: func(string) error {
			s.Notices = append(s.Notices, "--cache-directory has no effect: caches are part of sluice")
			return nil
		}},
	}
}

// cacheConfig reads <cache name>,<setting>=<value>[,<setting>=<value>…]. A comma that no
// known setting follows belongs to the value before it.
// Source of the first two texts: the original's.
func (s *Serve) cacheConfig(v string) error {
	name, rest, ok := strings.Cut(v, ",")
	if !ok || name == "" {
		return fmt.Errorf("No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got %s", v)
	}
	first, _, ok := strings.Cut(rest, "=")
	if !ok || first == "" {
		return fmt.Errorf("--cache-config option format is '<cache name>,<setting>=<value>'. Got %s", v)
	}
	if s.Config.Cache == nil {
		s.Config.Cache = gateway.CacheConfig{}
	}
	settings := s.Config.Cache[name]
	if settings == nil {
		settings = map[string]string{}
		s.Config.Cache[name] = settings
	}
	known := append(local.Settings(), redis.Settings()...)
	last := ""
	for i, part := range strings.Split(rest, ",") {
		setting, value, ok := strings.Cut(part, "=")
		if i > 0 && (!ok || !slices.Contains(known, setting)) {
			settings[last] += "," + part
			continue
		}
		settings[setting], last = value, setting
	}
	return nil
}

// finishCache puts the deprecated flag and the environment's names into the config.
func (s *Serve) finishCache(env func(string) (string, bool)) error {
	c := &s.Config
	if s.cacheSize != "" {
		if len(c.Cache) > 0 {
			// Source: the original's words.
			return fmt.Errorf("Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other.")
		}
		c.Cache = gateway.CacheConfig{"local": {"size": s.cacheSize}}
	}
	if settings, ok := c.Cache["redis"]; ok {
		for name, variable := range map[string]string{"user": "TRITONCACHE_REDIS_USERNAME", "password": "TRITONCACHE_REDIS_PASSWORD"} {
			if v, there := env(variable); there && settings[name] == "" {
				settings[name] = v
			}
		}
	}
	return nil
}
