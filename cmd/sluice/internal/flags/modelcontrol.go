package flags

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/gateway/repository"
)

// modelControl are the flags that say when models are loaded, and which.
func (s *Serve) modelControl() []flag {
	r := &s.Config.Repository
	return []flag{
		{name: "model-control-mode", arg: "string", def: "none", help: "none: all models are loaded at the start and stay. poll: changes of " +
			"the repositories are taken over. explicit: only those of --load-model are loaded at the start, others by load calls.",
			set: func(v string) error {
				for _, m := range []repository.Mode{repository.None, repository.Poll, repository.Explicit} {
					if v == m.String() {
						r.Mode = m
						return nil
					}
				}
				return fmt.Errorf("'%s' is not one of none, poll, explicit", v)
			}},
		{name: "repository-poll-secs", arg: "integer", def: "15", help: "Seconds between two looks at the repositories, with --model-control-mode=poll; " +
			"0: none. A folder is taken over when two looks saw the same.", set: durationInto(&r.PollInterval, time.Second)},
		{name: "load-model", arg: "string", repeat: true, help: "A model to be loaded at the start, with --model-control-mode=explicit; may be given " +
			"several times. '*' alone: all.", set: func(v string) error { r.Startup = append(r.Startup, v); return nil }},
		{name: "model-config-name", arg: "string", help: "Use configs/<name>.pbtxt in place of config.pbtxt where a model has it.", set: func(v string) error {
			if v == "" || strings.ContainsAny(v, "/\\\x00") {
				return fmt.Errorf("'%s' is no name of a configuration", v)
			}
			r.ConfigName = v
			return nil
		}},
		{name: "model-namespacing", arg: "boolean", def: "false", help: "Models of one name may be in several repositories; ensembles mean those of " +
			"their own repository first.", set: boolInto(&r.Namespacing)},
		{name: "model-load-gpu-limit", arg: "integer:float", repeat: true, help: "<device>:<fraction>: no model is loaded onto a GPU more of whose memory " +
			"is in use.", set: s.gpuLimit},
	}
}

// gpuLimit reads <device id>:<fraction>.
// Source of the text on the range: TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit.
func (s *Serve) gpuLimit(v string) error {
	device, fraction, ok := strings.Cut(v, ":")
	id, err := strconv.ParseUint(device, 10, 16)
	limit, err2 := strconv.ParseFloat(fraction, 64)
	if !ok || err != nil || err2 != nil {
		return fmt.Errorf("'%s' is not <device id>:<fraction>", v)
	}
	if !(limit >= 0 && limit <= 1) {
		return fmt.Errorf("expects limit fraction to be in range [0.0, 1.0], got %s", fraction)
	}
	if s.Config.Repository.GPULimits == nil {
		s.Config.Repository.GPULimits = map[int]float64{}
	}
	s.Config.Repository.GPULimits[int(id)] = limit
	return nil
}
