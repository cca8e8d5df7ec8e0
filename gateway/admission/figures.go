package admission

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// tally counts the refusals of one limit; it outlives changes of the file.
type tally struct{ refused, shadowed atomic.Uint64 }

type tallyKey struct {
	rule string
	kind Kind
}

// maxTallies bounds the names of rules that are told apart over all versions of a file.
const maxTallies = 4096

// tally finds or makes a limit's counter.
func (l *Limits) tally(r *Rule, limit *Limit) *tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := tallyKey{r.Name, limit.Kind}
	if _, ok := l.tallies[key]; !ok && len(l.tallies) >= maxTallies {
		key.rule = ""
	}
	t := l.tallies[key]
	if t == nil {
		t = &tally{}
		l.tallies[key] = t
	}
	return t
}

// Refusals are those of one limit.
type Refusals struct {
	Rule              string // "": of rules that are no more
	Kind              Kind
	Reason            infer.Reason
	Refused, Shadowed uint64 // Shadowed would have been refused, but for `shadow`
}

// Figures are the limits' metrics at one moment.
type Figures struct {
	Refusals      []Refusals // by rule and kind
	Rules, Meters int
	Shared        bool   // limits are shared through Redis
	Connected     bool   // Redis answers
	Asked, Failed uint64 // exchanges with Redis
	Late          uint64 // calls that did not wait for Redis any longer
	Foreign       uint64 // answers for limits whose own key in Redis holds what no gateway wrote
}

// Figures gives the metrics.
func (l *Limits) Figures() Figures {
	f := Figures{Rules: len(l.generation.Load().rules.rules), Meters: l.table.size()}
	l.mu.Lock()
	for key, t := range l.tallies {
		f.Refusals = append(f.Refusals, Refusals{Rule: key.rule, Kind: key.kind, Reason: reason(key.kind), Refused: t.refused.Load(), Shadowed: t.shadowed.Load()})
	}
	l.mu.Unlock()
	slices.SortFunc(f.Refusals, func(a, b Refusals) int { return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Kind, b.Kind)) })
	if k := l.table.link; k != nil {
		f.Shared, f.Connected = true, k.up()
		f.Asked, f.Failed, f.Late = k.asked.Load(), k.failed.Load(), k.late.Load()
		f.Foreign = k.foreign.Load()
	}
	return f
}
