package schedule

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/infer"
)

// DefaultMaxQueueSize bounds the waiting requests of a model whose config sets no
// max_queue_size. The original has no bound there; here everything has one.
const DefaultMaxQueueSize = 65536

// Model is what every scheduler knows of its model version.
// Source: message ModelConfig, proto/modelconfig/model_config.proto.
type Model struct {
	Name    string
	Version int64
	// MaxBatchSize is the most rows in one batch; 0: the model has no batch dimension.
	MaxBatchSize int
	// Inputs are the names of the model's inputs. A batch lists the inputs that its
	// requests have in this order, whatever order the requests named them in.
	Inputs []string
	// Decoupled models answer a request any number of times, also none.
	Decoupled bool
	// Ragged is what of the model's batches is not rows; nil: nothing.
	Ragged *ragged.Plan
}

// TimeoutAction says what happens to a request that waited longer than its timeout.
// Source: enum ModelQueuePolicy.TimeoutAction.
type TimeoutAction uint8

// The timeout actions. A delayed request goes behind all others of its level and has no
// timeout any more.
const (
	Reject TimeoutAction = iota
	Delay
)

// QueuePolicy bounds one waiting line.
// Source: message ModelQueuePolicy, proto/modelconfig/model_config.proto.
type QueuePolicy struct {
	// Set says that the config has a policy. Where it has none, a request's own
	// timeout counts as it is: there is nothing that it could override.
	Set           bool
	TimeoutAction TimeoutAction
	// Timeout is the longest a request may wait; 0: no limit.
	Timeout time.Duration
	// TimeoutOverride lets a request shorten Timeout, never lengthen it.
	TimeoutOverride bool
	MaxSize         int // waiting requests; 0: DefaultMaxQueueSize
}

// maxWait keeps deadlines within the clock's range.
const maxWait = 100 * 365 * 24 * time.Hour

// Wait is how long req may wait under this policy; 0: no limit. The original lets a
// request override only a default that is set; here its own timeout counts also where
// there is none.
func (p *QueuePolicy) Wait(req *infer.Request) time.Duration {
	wait := p.Timeout
	if req.Timeout > 0 && (!p.Set || p.TimeoutOverride) && (wait == 0 || req.Timeout < wait) {
		wait = req.Timeout
	}
	return min(wait, maxWait)
}

// Limit is the most requests that may wait.
func (p *QueuePolicy) Limit() int {
	if p.MaxSize > 0 {
		return p.MaxSize
	}
	return DefaultMaxQueueSize
}

// Levels are the priorities of a model version. The zero value is one line, in which
// the priorities of requests are not looked at.
// Source: priority_levels, default_priority_level and priority_queue_policy of message
// ModelDynamicBatching, proto/modelconfig/model_config.proto.
type Levels struct {
	Count   uint64 // 1 is served first; 0: no priorities
	Default uint64 // of requests that ask for none; within 1 and Count
	// Own are the policies of levels that have one; the others' is the default policy.
	Own map[uint64]*QueuePolicy
	// Fair > 0 lets each Fair-th batch begin with the request that waits longest,
	// whatever its level. The original has no such thing: its low levels may starve.
	Fair int
}

// Of is the level of a request whose priority was validated.
func (l *Levels) Of(req *infer.Request) uint64 {
	if l.Count > 0 && (req.Priority == 0 || req.Priority > l.Count) {
		return l.Default
	}
	return min(req.Priority, l.Count)
}

// Policy is the policy of a level, where other is that of levels without their own.
func (l *Levels) Policy(level uint64, other *QueuePolicy) *QueuePolicy {
	if own, ok := l.Own[level]; ok {
		return own
	}
	return other
}

// Limiter shares resources between the instances of all models; package ratelimit fits
// it. It stands for one scheduler: i are its instances, and each method but Flush may
// be called with the scheduler's lock held, one call at a time.
// Source: message ModelRateLimiter, proto/modelconfig/model_config.proto.
type Limiter interface {
	// Want asks for what a batch on instance i needs. false: it stands in line.
	Want(i int) bool
	// Accept says whether the grant that granted was called for still stands.
	Accept(i int) bool
	// Withdraw takes a wish back; a grant that was not accepted goes with it.
	Withdraw(i int)
	// Return gives back a grant that was not used. It doesn't count as an execution.
	Return(i int)
	// Done gives back what the batch of instance i had. again asks at the same moment
	// for its next one, so that others which wait get their turn; the result is Want's.
	Done(i int, again bool) bool
	// Flush calls granted of the schedulers that have been granted something meanwhile. It
	// is to be called without any lock after each of the above.
	Flush()
	// Close gives back everything and takes the scheduler's needs out.
	Close()
}

// NewLimiter makes the Limiter of a scheduler, whose Drain closes it. It is called once, as
// the last step of making the scheduler, and an error of it fails that. A Flush calls
// granted, without any lock, for an instance that is granted later than its Want.
type NewLimiter func(granted func(i int)) (Limiter, error)

// Deps are a scheduler's collaborators.
type Deps struct {
	// Executors are the model's instances, one each; a scheduler begins with all of
	// them in service.
	Executors []infer.Executor
	// Memory is where inputs are laid out for workers on this host; nil when no worker
	// shares memory, and requests are then named where they lie.
	Memory   Memory
	Observer Observer // nil: nobody listens
	// Limiter makes the scheduler's Limiter; nil: its instances share nothing.
	Limiter NewLimiter
	Clock   Clock
	IDs     *atomic.Uint64 // batch numbers, shared by all schedulers of a gateway
	Log     *slog.Logger
	// Changed is called, without the scheduler's locks and from any goroutine, after what its Fault
	// says has changed; nil: nobody listens.
	Changed func()
	// WorkerWait is how long requests wait while no instance is in service; 0: no bound.
	WorkerWait time.Duration
	Steps      Steps // for ensembles alone: the way to other models
	// Sequences are the rules of models with sequence_batching; the zero value has no bounds.
	Sequences SequenceRules
	// States are the files that implicit states begin with, by their data_file.
	States map[string][]byte
}

// Check says which collaborator is missing.
func (d *Deps) Check() error {
	switch {
	case len(d.Executors) == 0:
		return infer.Errorf(infer.InvalidArg, "a scheduler needs at least one instance")
	case d.Clock == nil:
		return infer.Errorf(infer.Internal, "a scheduler needs a clock")
	case d.IDs == nil:
		return infer.Errorf(infer.Internal, "a scheduler needs a source of batch numbers")
	case d.Log == nil:
		return infer.Errorf(infer.Internal, "a scheduler needs a log")
	}
	return nil
}
