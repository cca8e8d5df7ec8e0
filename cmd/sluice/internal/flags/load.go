package flags

import "github.com/sluice-serve/sluice/gateway/load"

func (s *Serve) load() []flag {
	return []flag{
		{name: "load-report", arg: "string", def: "off", help: "text, json or bin: every answer of an inference names the server's load " +
			"(ORCA, endpoint-load-metrics); off: those of callers that ask by endpoint-load-metrics-format do.", set: func(v string) (err error) {
			s.Config.Load.Always, err = load.ParseAlways(v)
			return err
		}},
	}
}
