package gateway

import (
	"context"
	"time"

	"github.com/sluice-serve/sluice/gateway/admission"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// SequencesConfig is --sequence-scope and --sequence-slot-timeout-secs.
type SequencesConfig struct {
	Scope       infer.SequenceScope // which callers share correlation IDs
	SlotTimeout time.Duration       // longest wait of a new sequence for a slot; 0: no limit
}

// sequenceRules are the rules of all models' sequences.
func (g *Gateway) sequenceRules() schedule.SequenceRules {
	r := schedule.SequenceRules{Scope: g.cfg.Sequences.Scope, Wait: g.cfg.Sequences.SlotTimeout, Placements: &g.placements}
	if g.limits != nil {
		r.Limits = sequenceLimits{g.limits}
	}
	return r
}

// sequenceLimits is admission.Limits as the scheduler wants it.
type sequenceLimits struct{ limits *admission.Limits }

func (s sequenceLimits) BeginSequence(ctx context.Context, req *infer.Request) (schedule.SequenceHold, error) {
	hold, err := s.limits.BeginSequence(ctx, req)
	if hold == nil {
		return nil, err
	}
	return hold, nil
}
