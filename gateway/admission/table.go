package admission

import (
	"net/netip"
	"strings"
	"sync"
)

// meterKey names a meter: what is measured together, of one limit of one rule.
type meterKey struct {
	rule      string
	kind      Kind
	principal string
	model     string
	remote    netip.Addr
}

// crowded is the principal of the meter that subjects share for which there is no room.
const crowded = "\x00"

// meter is what one subject has used of one limit. Its state stays when the file
// changes: limits are in the rules.
type meter struct {
	key  meterKey
	refs int     // of accounts; table.mu
	unit float64 // speed.unit that bucket is in; table.mu
	bucket
	counter
	shared *share // nil: not shared with other gateways
}

func (m *meter) idle(now int64) bool {
	return m.refs == 0 && m.bucket.idle(now) && m.counter.idle() && (m.shared == nil || m.shared.idle(now))
}

// table holds all meters, at most so many but for one of each rule, limit and kind.
type table struct {
	link *link // nil: meters are not shared

	mu     sync.Mutex
	most   int
	meters map[meterKey]*meter
}

// sample is how many entries of a map are looked at to make room for one.
const sample = 32

// get finds or makes a meter of a limit and holds it for an account.
func (t *table) get(key meterKey, limit *Limit, now int64) *meter {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.meters[key]
	if m == nil && len(t.meters) >= t.most && !t.roomLocked(now) {
		key = meterKey{rule: key.rule, kind: key.kind, principal: crowded}
		m = t.meters[key]
	}
	if m == nil {
		key.principal, key.model = strings.Clone(key.principal), strings.Clone(key.model)
		m = &meter{key: key}
		if t.link != nil && key.principal != crowded {
			m.shared = &share{}
		}
		t.meters[key] = m
	}
	if unit := limit.speed.unit; m.unit != unit {
		if m.unit > 0 && unit > 0 {
			m.bucket.rescale(unit/m.unit, now)
		}
		m.unit = unit
	}
	m.refs++
	return m
}

// roomLocked takes idle meters out, of a few that it looks at.
func (t *table) roomLocked(now int64) bool {
	n, found := 0, false
	for key, m := range t.meters {
		if m.idle(now) {
			delete(t.meters, key)
			found = true
		}
		if n++; n == sample {
			break
		}
	}
	return found
}

// put lets go of an account's meters. Those with something in them stay.
func (t *table) put(uses []use, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range uses {
		m := uses[i].meter
		m.refs--
		if m.idle(now) {
			delete(t.meters, m.key)
		}
	}
}

// sweep takes out all idle meters.
func (t *table) sweep(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, m := range t.meters {
		if m.idle(now) {
			delete(t.meters, key)
		}
	}
}

// due lists the shared meters of which Redis is to hear: what is held, what was drawn and
// not used, and what was used and not drawn.
func (t *table) due(now int64) (out []*meter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.meters {
		if m.shared != nil && (m.used.Load() > 0 || m.shared.due(now)) {
			out = append(out, m)
		}
	}
	return out
}

func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.meters)
}
