package flags

import (
	"fmt"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/regions"
)

// memory are the flags on shared memory that clients register.
func (s *Serve) memory() []flag {
	m := &s.Config.Regions
	return []flag{
		{name: "allow-client-shm", arg: "boolean", help: "Whether clients may register shared memory (docs/0019-shared-memory.md). Not given: callers " +
			"on the server's own host may, others not.", set: func(v string) error {
			on, err := boolean(v)
			s.Config.Auth.ClientMemory = auth.ClientMemoryNone
			if on {
				s.Config.Auth.ClientMemory = auth.ClientMemoryAll
			}
			return err
		}},
		{name: "client-shm-prefix", arg: "string", repeat: true, help: "What the keys of shared memory may begin with, " +
			"without the slash. In 'app_{principal}_' the caller's name stands for {principal}. Callers of whom the server " +
			"can't tell the user need one, or memory that everybody may read and write. Not given: anything but the names of " +
			"the server's own kind.", set: func(v string) error {
			if err := regions.CheckPrefix(v); err != nil {
				return err
			}
			m.Prefixes = append(m.Prefixes, v)
			return nil
		}},
		{name: "client-shm-max-regions", arg: "integer", def: fmt.Sprint(regions.DefaultMaxRegions), help: "The most regions that one owner may have: a " +
			"caller who is known, a user of this host, or all others of this host together.", set: intInto(&m.MaxRegions, 1, 1<<16)},
		{name: "client-shm-max-byte-size", arg: "integer", def: fmt.Sprint(int64(regions.DefaultMaxBytes)), help: "The most bytes in the regions of one owner.",
			set: intInto(&m.MaxBytes, 1, 1<<60)},
	}
}
