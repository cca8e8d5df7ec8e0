package schedule

import (
	"log/slog"
	"sync/atomic"
	"time"

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
}

// TimeoutAction says what happens to a request that waited longer than its timeout.
// Source: enum ModelQueuePolicy.TimeoutAction.
type TimeoutAction uint8

// The timeout actions. Delay comes with the queue policies of a later step; the
// schedulers refuse it as Unsupported.
const (
	Reject TimeoutAction = iota
	Delay
)

// QueuePolicy bounds one waiting line. When priorities come, each level has its own.
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

// Deps are a scheduler's collaborators.
type Deps struct {
	// Executors are the model's instances, one each; a scheduler begins with all of
	// them in service.
	Executors []infer.Executor
	// Memory is where inputs are laid out for workers on this host; nil when no worker
	// shares memory, and requests are then named where they lie.
	Memory   Memory
	Observer Observer // nil: nobody listens
	Clock    Clock
	IDs      *atomic.Uint64 // batch numbers, shared by all schedulers of a gateway
	Log      *slog.Logger
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
