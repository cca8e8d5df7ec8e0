package admission

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// SequenceHold is one sequence of a caller, which counts in all limits that it met.
type SequenceHold struct {
	limits  *Limits
	account *account
	began   int64
}

// BeginSequence counts one more sequence of the caller of req.Origin with req.Model, until the
// hold's End; with Redis it may wait as other calls do. The hold is nil where no limit counts
// it. ResourceExhausted with reason sequences says that the caller may have no further one.
// It fits schedule.SequenceLimits.
func (l *Limits) BeginSequence(ctx context.Context, req *infer.Request) (*SequenceHold, error) {
	if req.Origin == nil || !l.generation.Load().rules.sequences {
		return nil, nil
	}
	a := l.find(req.Origin, req.Model, whole)
	if a == nil {
		return nil, nil
	}
	if !a.kinds[Sequences] {
		l.leave(a)
		return nil, nil
	}
	take := amounts{Requests: skip, Bytes: skip, Elements: skip, Compute: skip, Concurrency: skip, BytesInFlight: skip,
		Sequences: 1}
	now := l.now()
	if err := l.enter(ctx, a, &take, now); err != nil {
		l.leave(a)
		return nil, err
	}
	return &SequenceHold{limits: l, account: a, began: now}, nil
}

// End ends the counting. It is called once; it doesn't block.
func (h *SequenceHold) End() {
	l, a := h.limits, h.account
	took := l.now() - h.began
	for i := range a.uses {
		if u := &a.uses[i]; u.limit.Kind == Sequences {
			l.giveBack(u, 1, took)
		}
	}
	l.leave(a)
}
