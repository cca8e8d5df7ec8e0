package flags

import (
	"fmt"
	"strings"

	"github.com/sluice-serve/sluice/gateway/accesslog"
	"github.com/sluice-serve/sluice/gateway/pipeline"
)

// observe are the flags of what is told of each call.
func (s *Serve) observe() []flag {
	o := &s.Config.Observe
	return []flag{
		{name: "access-log", arg: "string", help: "Append a JSON line for each call to this file, or to 'stdout'. The file is opened again at SIGHUP and when it was moved.",
			set: stringInto(&o.AccessLog.File)},
		{name: "access-log-config", arg: "string=string", repeat: true, help: "successes=N (one of N calls that went well is logged; 0: none; default 1: all), " +
			"slow-ms=N (slower ones always are), health=true (health checks that went well, too), max-bytes=N (a larger file is moved to FILE.1; " +
			"default 0: never), keep=N (files that were moved; default 5), buffer-bytes=N (lines that wait for the disk; default 4194304).",
			set: func(v string) error {
				name, value, ok := strings.Cut(v, "=")
				if !ok {
					return fmt.Errorf("'%s' is not <setting>=<value>; there are %s", v, strings.Join(accesslog.Names(), ", "))
				}
				return o.AccessLog.Set(name, value)
			}},
		{name: "response-timings", arg: "string", def: "on-request", help: "Who finds the request's own times in the answer (Server-Timing): on-request, " +
			"callers that send x-sluice-timing: 1 or the parameter sluice_timings; always; never.", set: func(v string) error {
			switch v {
			case "on-request":
				o.Timings = pipeline.TimingsOnRequest
			case "always":
				o.Timings = pipeline.TimingsAlways
			case "never":
				o.Timings = pipeline.TimingsNever
			default:
				return fmt.Errorf("'%s' is not on-request, always or never", v)
			}
			return nil
		}},
	}
}
