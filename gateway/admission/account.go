package admission

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// phase is which of its rules a call has met.
type phase uint8

const (
	whole phase = iota // all, since the model is known or no rule looks at it
	early              // those that don't look at the model
	late               // those that early left
	envoy              // all, asked by Envoy's rate limit service
)

// accountKey is all by which rules tell calls apart.
type accountKey struct {
	principal string
	model     string
	remote    netip.Addr
	action    infer.Action
	phase     phase
}

// account lists what calls of one kind must pass.
type account struct {
	key    accountKey
	groups []string
	uses   []use
	kinds  [numKinds]bool // that are in uses
	weight int
	refs   atomic.Int32 // calls that use it now, and one while it is in a shard

	touched bool // since the last sweep; shard.mu
}

// use is one limit with the meter of who is measured.
type use struct {
	rule  *Rule
	limit *Limit
	meter *meter
	tally *tally
	peek  bool // looked at, not spent: it is counted elsewhere
}

const shards = 64

// generation is one version of the rules, with the accounts that were worked out.
type generation struct {
	rules  *Rules
	seed   maphash.Seed
	most   int // accounts in a shard
	shards [shards]shard
}

type shard struct {
	mu       sync.Mutex
	closed   bool // another generation counts
	accounts map[accountKey]*account
}

func newGeneration(r *Rules) *generation {
	g := &generation{rules: r, seed: maphash.MakeSeed(), most: max(r.track/shards, 1)}
	for i := range g.shards {
		g.shards[i].accounts = map[accountKey]*account{}
	}
	return g
}

func (g *generation) shard(k *accountKey) *shard {
	h := maphash.String(g.seed, k.principal) ^ maphash.String(g.seed, k.model)
	if g.rules.remote {
		h ^= maphash.Comparable(g.seed, k.remote)
	}
	return &g.shards[h%shards]
}

// account finds or makes the account of such calls and counts one that uses it; leave
// ends that. nil: the rules have changed meanwhile.
func (l *Limits) account(g *generation, who *infer.Principal, key accountKey) *account {
	if who != nil {
		key.principal = who.Name
	}
	if !g.rules.byModel {
		key.model = ""
	}
	if g.rules.remote {
		key.remote = network(key.remote)
	} else {
		key.remote = netip.Addr{}
	}
	if a := l.look(g, who, &key, false); a != nil {
		return a
	}
	if len(key.model) > maxName || key.phase != envoy && key.model != "" && !l.known(key.model) {
		key.model = ""
	}
	return l.look(g, who, &key, true)
}

// maxName bounds the names of models that are told apart. Longer ones, and such as are
// not there, count as no model: else any caller could fill the room for meters.
const maxName = 256

// networkBits is how much of an IPv6 address is its network's: who has one has all
// addresses of it. Source: RFC 4291, 2.5.4.
const networkBits = 64

// network is whose an address is.
func network(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() {
		return a
	}
	p, err := a.WithZone("").Prefix(networkBits)
	if err != nil { // of no IPv6 address
		return a
	}
	return p.Addr()
}

func groupsOf(who *infer.Principal) []string {
	if who == nil {
		return nil
	}
	return who.Groups
}

// look finds an account, or makes it; nil: the rules have changed, or it may not make one.
func (l *Limits) look(g *generation, who *infer.Principal, key *accountKey, make bool) *account {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[*key]
	if a != nil && !slices.Equal(a.groups, groupsOf(who)) {
		l.dropLocked(s, a) // the policy gives this name other groups now
		a = nil
	}
	if s.closed || a == nil && !make {
		return nil
	}
	if a == nil {
		a = l.openLocked(g, s, who, *key)
	}
	a.touched = true
	a.refs.Add(1)
	return a
}

// openLocked makes an account. Where there is no room it is in no shard, and this call's
// alone.
func (l *Limits) openLocked(g *generation, s *shard, who *infer.Principal, key accountKey) *account {
	key.principal, key.model = strings.Clone(key.principal), strings.Clone(key.model)
	a := &account{key: key, groups: slices.Clone(groupsOf(who))}
	sub := subject{principal: key.principal, groups: a.groups, model: key.model, action: key.action}
	a.weight = g.rules.weight(&sub)
	rules := g.rules.all
	switch key.phase {
	case early:
		rules = g.rules.early
	case late:
		rules = g.rules.late
	}
	now := l.now()
	for _, r := range rules(&sub) {
		if r.envoy && key.phase != envoy {
			continue
		}
		for _, limit := range r.limits {
			a.kinds[limit.Kind] = true
			a.uses = append(a.uses, use{rule: r, limit: limit, meter: l.table.get(measured(r, limit, &key), limit, now), tally: l.tally(r, limit),
				peek: key.phase == envoy && !r.envoy})
		}
	}
	// what is held comes first: a call that it refuses has spent nothing
	slices.SortStableFunc(a.uses, func(x, y use) int { return int(y.limit.Kind) - int(x.limit.Kind) })
	if len(s.accounts) >= g.most && !l.roomLocked(s) {
		return a
	}
	a.refs.Store(1)
	s.accounts[key] = a
	return a
}

// measured names the meter of a limit for a subject.
func measured(r *Rule, limit *Limit, key *accountKey) meterKey {
	m := meterKey{rule: r.Name, kind: limit.Kind}
	switch r.each {
	case EachPrincipal:
		m.principal = key.principal
	case EachModel:
		m.model = key.model
	case EachBoth:
		m.principal, m.model = key.principal, key.model
	case EachRemote:
		m.remote = key.remote
	}
	return m
}

// roomLocked takes out accounts that no call uses, of a few that it looks at.
func (l *Limits) roomLocked(s *shard) bool {
	n, found := 0, false
	for _, a := range s.accounts {
		if a.refs.Load() == 1 {
			l.dropLocked(s, a)
			found = true
		}
		if n++; n == sample {
			break
		}
	}
	return found
}

// dropLocked takes an account out. Calls that use it go on doing so; their last one
// lets go of the meters.
func (l *Limits) dropLocked(s *shard, a *account) {
	delete(s.accounts, a.key)
	l.leave(a)
}

// leave ends a use of an account; the last one lets go of the meters.
func (l *Limits) leave(a *account) {
	if a.refs.Add(-1) == 0 {
		l.table.put(a.uses, l.now())
	}
}

// retire takes out all accounts of a generation.
func (l *Limits) retire(g *generation) {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		s.closed = true
		for _, a := range s.accounts {
			l.dropLocked(s, a)
		}
		s.mu.Unlock()
	}
}

// sweep takes out what was not used since the last sweep.
func (l *Limits) sweep() {
	g := l.generation.Load()
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, a := range s.accounts {
			if !a.touched && a.refs.Load() == 1 {
				l.dropLocked(s, a)
			}
			a.touched = false
		}
		s.mu.Unlock()
	}
	l.table.sweep(l.now())
}
