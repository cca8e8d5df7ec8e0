package picker

import (
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/mesh"
)

// feed is what a gateway tells of the sequences that live there.
type feed struct {
	told    bool   // once all of them, since this State began
	opening bool   // it is telling them all
	number  uint64 // of the connection that tells
}

// continued is the pick of a call that may go on with a sequence. false: there is none that
// it could belong to, as far as the gateways have told, or the call may begin one.
func (s *State) continued(now time.Duration, c *Call) (Pick, bool) {
	q, own := s.table.get(c, now)
	switch {
	case q == nil && c.Bare, q == nil && s.informed(c.Group):
		return Pick{}, false
	case q == nil:
		return Pick{Why: WhyUnplaced, Refused: true}, true
	case q.lost:
		return Pick{Why: WhyLost, Refused: true, Owner: q.was}, true
	case q.owner.dead: // whoever was told so must begin anew, also if it comes back
		if own {
			q.lose()
		}
		return Pick{Why: WhyLost, Refused: true, Owner: q.was}, true
	case !q.newest && !s.informed(c.Group):
		return Pick{Why: WhyUnplaced, Refused: true}, true
	}
	owner, p := q.owner, Pick{Gateway: q.owner.name, Why: WhySequence, Placement: q.placement()}
	owner.sent[sentTo{c.Model, c.Version}]++
	p.Placement.Unknown = !own
	if c.End && own && !q.told {
		s.table.remove(q)
	}
	return p, true
}

// informed says that all gateways of a group have told where sequences live, or are gone. Before
// that, what one has told may be an old life of a sequence that has a newer one elsewhere.
func (s *State) informed(group string) bool {
	for _, g := range s.gateways {
		if g.group == group && !g.feed.told {
			return false
		}
	}
	return true
}

// place is the pick of a call that begins a sequence, or of whose sequence no gateway knows.
func (s *State) place(now time.Duration, c *Call) Pick {
	chosen, why := s.first(hash(c.Model, c.Sequence)), WhyStart
	chosen.g.sent[sentTo{c.Model, c.Version}]++
	if !c.Start && !c.Bare {
		// A gateway refuses it as Triton does, or another picker has begun it just now, by the
		// same hash.
		p := keyOf(c).placement(s.epoch(0) - uint64(s.rules.Lag))
		p.Unknown = true
		return Pick{Gateway: chosen.g.name, Why: WhyGuess, Placement: p}
	}
	q, own := s.table.get(c, now)
	after := uint64(0)
	if q != nil {
		after = q.epoch
	}
	if q != nil && !q.lost {
		chosen = s.among(q.owner, chosen) // it begins anew where it was, so that nothing of it stays behind
	}
	epoch := s.epoch(after)
	if !c.End {
		s.table.put(keyOf(c), chosen.g, epoch, now)
	} else if own {
		s.table.remove(q)
	}
	return Pick{Gateway: chosen.g.name, Why: why, Placement: keyOf(c).placement(epoch)}
}

// among is the candidate that g is, or else other.
func (s *State) among(g *gateway, other *candidate) *candidate {
	for i := range s.eligible {
		if s.eligible[i].g == g {
			return &s.eligible[i]
		}
	}
	return other
}

// Follow says that a gateway begins to tell of all its sequences, over a new connection.
func (s *State) Follow(name string) {
	if g := s.find(name); g != nil {
		g.feed.opening = true
		g.feed.number++
	}
}

// Told says that a gateway has told all that lives there: what it has not named has ended.
func (s *State) Told(name string) {
	g := s.find(name)
	if g == nil {
		return
	}
	g.feed.told, g.feed.opening = true, false
	for q := range g.owned {
		if q.told && q.number != g.feed.number {
			s.table.remove(q)
		}
	}
}

// Placed takes what a gateway told of a sequence at now.
func (s *State) Placed(now time.Duration, name string, change *mesh.PlacedSequence) {
	g := s.find(name)
	key, ok := parseKey(change.Key)
	if g == nil || !ok {
		return
	}
	q := s.table.all[key]
	switch {
	case q != nil && (q.epoch > change.Epoch || q.lost && q.epoch == change.Epoch):
		return
	case change.State == mesh.PlacedSequence_LIVES:
		if q == nil || q.owner != g || q.epoch != change.Epoch {
			q = s.table.put(key, g, change.Epoch, now)
			q.newest = !g.feed.opening
		}
		q.told, q.number = true, g.feed.number
	case q == nil || q.owner != g:
	case change.State == mesh.PlacedSequence_LOST:
		q.lose()
	default:
		s.table.remove(q)
	}
}

// placement is what gateways are told of calls of the sequence.
func (q *sequence) placement() infer.Placement { return q.key.placement(q.epoch) }

func (k sequenceKey) placement(epoch uint64) infer.Placement {
	return infer.Placement{Key: infer.SequenceKey(k.scope, k.model, k.version, k.id), Epoch: epoch}
}

// parseKey reads a key that a gateway was given.
func parseKey(text string) (sequenceKey, bool) {
	scope, model, version, id, ok := infer.ParseSequenceKey(text)
	return sequenceKey{scope, sharedKey{model, version, id}}, ok
}

// loose says that the key's scope stands for credentials alone.
func (k sequenceKey) loose() bool { return strings.HasPrefix(k.scope, shownScope) }
