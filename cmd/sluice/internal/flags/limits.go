package flags

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/cache/redis"
)

func (s *Serve) limits() []flag {
	l := &s.Config.Limits
	return []flag{
		{name: "limits-file", arg: "string", help: "YAML file of limits on callers: rates, compute time, concurrency, bytes in flight, " +
			"sequences (docs/0012-limits.md). It is read again when it changes.", set: stringInto(&l.File)},
		{name: "limits-redis", arg: "string=string", repeat: true, help: "Redis through which gateways share the limits: host=HOST,port=PORT[,…], with the settings " +
			"of --cache-config redis but ttl, and password_file; several in one flag or each in its own. Without an answer within budget " +
			"milliseconds (5) a gateway limits alone.", set: s.limitsRedis},
	}
}

// limitsRedis reads <setting>=<value>[,<setting>=<value>…]. A comma that no known setting
// follows belongs to the value before it.
func (s *Serve) limitsRedis(v string) error {
	l := &s.Config.Limits
	if l.Redis == nil {
		l.Redis = map[string]string{}
	}
	known := append(redis.Settings(), "password_file")
	last := ""
	for i, part := range strings.Split(v, ",") {
		setting, value, ok := strings.Cut(part, "=")
		if i > 0 && (!ok || !slices.Contains(known, setting)) {
			l.Redis[last] += "," + part
			continue
		}
		if !ok || setting == "" {
			return fmt.Errorf("it is not <setting>=<value>[,<setting>=<value>…]") // its value may be a secret
		}
		l.Redis[setting], last = value, setting
	}
	return nil
}
