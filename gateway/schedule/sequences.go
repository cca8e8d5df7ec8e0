package schedule

import (
	"context"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// SequenceRules are a gateway's rules for the sequences of all its models.
type SequenceRules struct {
	// Scope says which callers share correlation IDs.
	Scope infer.SequenceScope
	// Wait is how long a new sequence may wait for a slot of an instance, or the model's
	// max_sequence_idle_microseconds where that is longer: slots of sequences that their
	// callers forgot are free again by then. 0: as long as it takes, as in Triton.
	Wait time.Duration
	// Limits bounds the sequences that callers have; nil: nothing does.
	Limits SequenceLimits
	// Placements is told of the sequences that the picker of a mesh has placed; nil: nobody is.
	Placements Placements
}

// Placements is told of the sequences that the picker of a mesh has placed at this gateway;
// placements.Registry fits. It is called with a scheduler's lock held: it neither blocks nor
// calls back.
type Placements interface {
	// Began says that a START of the sequence came, which ends an older one of its key. Several
	// models may have the same sequence, as steps of an ensemble.
	Began(s infer.PlacedSequence)
	// Ended says that it has ended, once for each Began. lost says that it was not its callers'
	// doing.
	Ended(s infer.PlacedSequence, lost bool)
}

// SequenceLimits bounds the sequences that callers have; admission.Limits fits.
type SequenceLimits interface {
	// BeginSequence counts one more sequence of req's caller with req's model. It may wait as
	// long as ctx lasts. The hold is nil where nothing is counted. The error,
	// ResourceExhausted, says that the caller may have no further one.
	BeginSequence(ctx context.Context, req *infer.Request) (SequenceHold, error)
}

// SequenceHold is one sequence that is counted.
type SequenceHold interface {
	// End ends the counting. It is called once, maybe with a scheduler's lock held: it neither
	// blocks nor calls back.
	End()
}
