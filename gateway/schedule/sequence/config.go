package sequence

import (
	"math"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// Config is sequence_batching of one model version in Go units.
// Source: message ModelSequenceBatching, proto/modelconfig/model_config.proto.
type Config struct {
	Model    schedule.Model
	Idle     time.Duration // longest time that a sequence may have no request; 0: no limit
	Oldest   *Oldest       // nil: the direct strategy
	Direct   Direct
	Controls []Control
	States   []State
	// Iterative sequences are of one request each, which the backend may ask to execute
	// again.
	Iterative bool

	gateway schedule.SequenceRules // of Deps
}

// Direct is the direct strategy. The zero value is that of a config without strategy.
type Direct struct {
	// While fewer than Utilization of an instance's slots have a request, its batch waits
	// until the oldest one is as old as MaxQueueDelay. 0: no batch waits.
	Utilization   float64 // within 0 and 1
	MaxQueueDelay time.Duration
}

// Oldest is the oldest strategy.
type Oldest struct {
	// Candidates are the sequences that an instance has at a time; 0: max_batch_size of
	// them, as in the original.
	Candidates       int
	Preferred        []int // as in dynamic.Config
	MaxQueueDelay    time.Duration
	PreserveOrdering bool
}

// Kind is what a control tensor tells.
// Source: enum ModelSequenceBatching.Control.Kind.
type Kind uint8

// The kinds of controls.
const (
	Start Kind = iota
	Ready
	End
	CorrelationID
)

// Control is one control tensor: one element for each row.
type Control struct {
	Name     string
	Kind     Kind
	Datatype infer.Datatype
	// False and True are the element's bytes; of CorrelationID neither is set.
	False, True []byte
}

// State is one implicit state.
type State struct {
	Input, Output string
	Datatype      infer.Datatype
	Dims          []int64 // without batch dimension; -1: any size
	// Initial is what a sequence begins with, of shape InitialDims; nil: zeros, where
	// dimensions of any size are 1.
	Initial     []byte
	InitialDims []int64
	// Visible says that the output is also one of the model's outputs.
	Visible bool
}

// Scheduler is a schedule.Scheduler.
type Scheduler struct {
	*driver
	cfg Config
	// These survive the cores.
	held   *holds
	placed *placed
}

// rules turns the config into those of a core.
func (c *Config) rules(instances int) rules {
	r := rules{model: c.Model.Name, instances: instances, limit: limit, idle: int64(c.Idle), iterative: c.Iterative,
		scope: c.gateway.Scope, durable: c.durable(), slots: max(c.Model.MaxBatchSize, 1)}
	if c.gateway.Wait > 0 && !c.Iterative { // a request of those is a whole sequence: it waits as in any queue
		r.wait = int64(min(max(c.gateway.Wait, c.Idle), math.MaxInt64/4)) // added to a time, it is one
	}
	if c.Oldest == nil {
		r.utilization, r.delay = c.Direct.Utilization, int64(c.Direct.MaxQueueDelay)
		return r
	}
	if c.Oldest.Candidates > 0 {
		r.slots = c.Oldest.Candidates
	}
	r.cutters = make([]queue.Cutter, instances)
	for i := range r.cutters {
		r.cutters[i] = dynamic.NewCutter(max(c.Model.MaxBatchSize, 1), c.Oldest.Preferred, c.Oldest.MaxQueueDelay)
	}
	return r
}

// durable says that sequences outlive their worker: their state is in the gateway.
func (c *Config) durable() bool { return len(c.States) > 0 }

func (c *Config) validate() error {
	if u := c.Direct.Utilization; !(u >= 0 && u <= 1) {
		return infer.Errorf(infer.InvalidArg, "sequence batching minimum slot utilization must be in range (0.0, 1.0] for %s", c.Model.Name)
	}
	if c.Model.MaxBatchSize > maxSlots {
		return infer.Errorf(infer.InvalidArg, "model '%s': max_batch_size is %d, sequences can have %d slots", c.Model.Name, c.Model.MaxBatchSize, maxSlots)
	}
	if o := c.Oldest; o != nil {
		if o.Candidates < 0 || o.Candidates > maxSlots {
			return infer.Errorf(infer.InvalidArg, "model '%s': max_candidate_sequences is %d, want 0 to %d", c.Model.Name, o.Candidates, maxSlots)
		}
		for _, p := range o.Preferred {
			if p < 1 || p > max(c.Model.MaxBatchSize, 1) {
				return infer.Errorf(infer.InvalidArg, "sequence batching preferred batch size must be <= max batch size for %s", c.Model.Name)
			}
		}
	}
	return nil
}

// maxSlots bounds the slots of an instance.
const maxSlots = 1 << 20
