package flags

import (
	"fmt"
	"strconv"
	"strings"
)

// later are the original's flags for features that this version has not. Giving one
// is an error that names the feature, unless the value asks for nothing: a server that
// quietly leaves out a cache or an access rule is worse than one that does not start.
func (s *Serve) later() []flag {
	refused := func(name, arg, feature string, harmless ...string) flag {
		return flag{name: name, arg: arg, repeat: true, help: "Of " + feature + ".", set: func(v string) error {
			for _, ok := range harmless {
				if v == ok {
					return nil
				}
			}
			return fmt.Errorf("%s is not in this version of sluice", feature)
		}}
	}
	return []flag{
		refused("host-policy", "string,string=string", "host policies"),
	}
}

// tuning are the original's flags whose subject does not exist here: they are taken,
// so that a command line can be moved over, and a notice in the log says so.
func (s *Serve) tuning() []flag {
	ignored := func(name, arg, why string) flag {
		return flag{name: name, arg: arg, repeat: true, help: why, set: func(string) error {
			s.Notices = append(s.Notices, fmt.Sprintf("--%s has no effect: %s", name, why))
			return nil
		}}
	}
	return []flag{
		ignored("http-thread-count", "integer", "Connections need no threads of their own."),
		ignored("grpc-infer-thread-count", "integer", "Calls need no threads of their own."),
		ignored("grpc-infer-allocation-pool-size", "integer", "Request objects are pooled as needed."),
		ignored("grpc-max-response-pool-size", "integer", "Response objects are pooled as needed."),
		ignored("sagemaker-thread-count", "integer", "Connections need no threads of their own."),
		ignored("vertex-ai-thread-count", "integer", "Connections need no threads of their own."),
		ignored("enable-peer-access", "boolean", "Each GPU has a worker of its own."),
		ignored("pinned-memory-pool-byte-size", "integer", "Tensors lie in arenas: see --request-arena-byte-size."),
		{name: "cuda-memory-pool-byte-size", arg: "integer:integer", repeat: true, help: "<device>:<bytes>: the most memory of a GPU that its worker " +
			"takes for tensors; what backends take themselves does not count. 1073741824 by default. Workers of --worker have a flag of their own.",
			set: s.deviceMemory},
		ignored("cuda-virtual-address-size", "integer:integer", "There is no growable state in this version."),
		ignored("min-supported-compute-capability", "float", "The backend's libraries decide."),
		ignored("buffer-manager-thread-count", "integer", "Batches are laid out without gathering."),
	}
}

// deviceMemory reads <device id>:<bytes>.
func (s *Serve) deviceMemory(v string) error {
	device, size, ok := strings.Cut(v, ":")
	id, err := strconv.ParseUint(device, 10, 16)
	n, err2 := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || err2 != nil || n < 0 {
		return fmt.Errorf("'%s' is not <device id>:<bytes>", v)
	}
	if s.Config.Workers.DeviceMemory == nil {
		s.Config.Workers.DeviceMemory = map[int]int64{}
	}
	s.Config.Workers.DeviceMemory[int(id)] = n
	return nil
}

// deprecated are the original's deprecated flags.
func (s *Serve) deprecated() []flag {
	strict := func(v string) error {
		on, err := boolean(v)
		s.Config.Repository.NoAutoComplete = s.Config.Repository.NoAutoComplete || on
		return err
	}
	return append(s.deprecatedTracing(), []flag{
		{name: "strict-model-config", arg: "boolean", help: "Use --disable-auto-complete-config.", set: strict},
		{name: "response-cache-byte-size", arg: "integer", help: "Use --cache-config local,size=BYTES.", set: stringInto(&s.cacheSize)},
	}...)
}
