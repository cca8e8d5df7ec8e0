package flags

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// sequences are the flags of all models with sequence_batching.
func (s *Serve) sequences() []flag {
	c := &s.Config.Sequences
	return []flag{
		{name: "sequence-scope", arg: "string", def: "tenant", help: "Whose a sequence is: correlation IDs are told apart by the " +
			"caller's tenant, or by each caller (principal); none: all callers share them, as in Triton. Callers of whom " +
			"it is not known share them, too.",
			set: func(v string) (err error) { c.Scope, err = infer.ParseSequenceScope(v); return err }},
		{name: "sequence-slot-timeout-secs", arg: "integer", def: "60", help: "Seconds that a new sequence waits for a free slot " +
			"before it is refused with 503, or max_sequence_idle_microseconds of its model where that is longer. 0: as long " +
			"as it takes, as in Triton.",
			set: durationInto(&c.SlotTimeout, time.Second)},
	}
}
