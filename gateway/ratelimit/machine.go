package ratelimit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Global is the Device of a resource that all devices share; Every, of --rate-limit-resource,
// means each device.
const (
	Global = -2
	Every  = -1
)

// Resource says how much of a resource there is.
// Source: --rate-limit-resource of the original; names match in any case, since the
// original turns them into small letters.
type Resource struct {
	Name   string
	Count  int64
	Device int // or Every
}

// Need is what a batch on an instance takes.
type Need struct {
	Name   string
	Count  int64
	Device int // that of the instance, or Global
}

// Instance is what the limiter knows of one instance.
type Instance struct {
	Needs    []Need
	Priority uint32 // 0 is 1
}

type key struct {
	device int
	name   string
}

// pool is one resource on one device, or of all.
type pool struct {
	key
	size     int64
	used     int64
	reserved int64 // while grants are looked for: kept for instances further ahead
}

type state uint8

const (
	idle state = iota
	waiting
	granted // and not accepted yet
	held
)

// share is one instance.
type share struct {
	member *Member
	index  int
	claims []claim
	stride uint64
	pass   uint64 // executions times priority, with the time it was idle filled up
	turn   uint64 // of its wish, among equal passes
	state  state
}

type claim struct {
	pool  *pool
	count int64
}

// machine decides who gets what, and when. Its caller serializes.
type machine struct {
	given  []Resource // none: as much as the neediest instance needs
	pools  []*pool    // by device, then name
	shares []*share
	line   []*share // those that wait, in their order
	pass   uint64   // of the last grant
	turns  uint64
	grants []*share // made, and to be told; their state is granted
}

func newMachine(given []Resource) *machine { return &machine{given: slices.Clone(given)} }

// add takes instances in. Where there is less of a resource than one of them needs, it
// is InvalidArg in the original's words and nothing has changed.
func (m *machine) add(member *Member, instances []Instance) ([]*share, error) {
	all := make([]*share, len(instances))
	for i, in := range instances {
		s := &share{member: member, index: i, stride: uint64(max(in.Priority, 1)), pass: m.pass}
		for _, n := range in.Needs {
			s.claim(m.pool(key{n.Device, n.Name}), n.Count)
		}
		all[i] = s
	}
	m.shares = append(m.shares, all...)
	m.resize()
	if err := m.check(); err != nil {
		m.drop(all)
		return nil, err
	}
	m.settle()
	return all, nil
}

// claim counts a resource that is named twice once, with its last count, as the
// original does.
func (s *share) claim(p *pool, count int64) {
	for i := range s.claims {
		if s.claims[i].pool == p {
			s.claims[i].count = count
			return
		}
	}
	s.claims = append(s.claims, claim{p, count})
}

func (m *machine) pool(k key) *pool {
	i, ok := slices.BinarySearchFunc(m.pools, k, func(p *pool, k key) int {
		return cmp.Or(cmp.Compare(p.device, k.device), strings.Compare(p.name, k.name))
	})
	if !ok {
		m.pools = slices.Insert(m.pools, i, &pool{key: k})
	}
	return m.pools[i]
}

// resize makes the pools as large as is given or needed, and forgets those that nobody
// needs.
func (m *machine) resize() {
	needed := map[*pool]int64{}
	for _, s := range m.shares {
		for _, c := range s.claims {
			needed[c.pool] = max(needed[c.pool], c.count)
		}
	}
	m.pools = slices.DeleteFunc(m.pools, func(p *pool) bool { _, ok := needed[p]; return !ok })
	for _, p := range m.pools {
		p.size = needed[p]
		if len(m.given) > 0 {
			p.size = m.givenTo(p.key)
		}
	}
}

// givenTo is how much there is of a resource by --rate-limit-resource: the largest count
// that names its device or none; any, for a global one.
func (m *machine) givenTo(k key) (count int64) {
	for _, r := range m.given {
		if strings.EqualFold(r.Name, k.name) && (k.device == Global || r.Device == k.device || r.Device == Every) {
			count = max(count, r.Count)
		}
	}
	return count
}

// check says what can't be.
// Source: ParseAndValidateExplicitResources and ValidateMaxResources of the original's
// rate_limiter.cc.
func (m *machine) check() error {
	needed := map[*pool]int64{}
	for _, s := range m.shares {
		for _, c := range s.claims {
			needed[c.pool] = max(needed[c.pool], c.count)
		}
	}
	global := map[string]bool{}
	for _, p := range m.pools {
		if needed[p] > p.size {
			return infer.Errorf(infer.InvalidArg, "Resource count for \"%s\" is limited to %d which will prevent scheduling of one or "+
				"more model instances, the minimum required count is %d", p.name, p.size, needed[p])
		}
		global[p.name] = global[p.name] || p.device == Global
	}
	for _, p := range m.pools {
		if p.device != Global && global[p.name] {
			return infer.Errorf(infer.InvalidArg, "Resource \"%s\" is present as both global and device-specific resource in the model "+
				"configuration.", p.name)
		}
	}
	return nil
}

// drop takes instances out, with all they hold and wish.
func (m *machine) drop(shares []*share) {
	for _, s := range shares {
		m.stop(s)
	}
	gone := func(s *share) bool { return slices.Contains(shares, s) }
	m.shares = slices.DeleteFunc(m.shares, gone)
	m.grants = slices.DeleteFunc(m.grants, gone)
	m.resize()
	m.settle()
}

// stop leaves an instance with nothing.
func (m *machine) stop(s *share) {
	switch s.state {
	case waiting:
		m.line = slices.DeleteFunc(m.line, func(o *share) bool { return o == s })
	case granted, held:
		s.release()
	}
	s.state = idle
}

func (s *share) release() {
	for _, c := range s.claims {
		c.pool.used -= c.count
	}
}

// want puts the instance in line; true: it was granted at once.
func (m *machine) want(s *share) bool {
	if s.state != idle {
		return false
	}
	m.queue(s)
	m.settle()
	return m.accept(s)
}

func (m *machine) queue(s *share) {
	s.state = waiting
	s.pass = max(s.pass, m.pass)
	m.turns++
	s.turn = m.turns
	i, _ := slices.BinarySearchFunc(m.line, s, func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.pass, b.pass), cmp.Compare(a.turn, b.turn))
	})
	m.line = slices.Insert(m.line, i, s)
}

// accept takes a grant that was made; false where there is none.
func (m *machine) accept(s *share) bool {
	if s.state != granted {
		return false
	}
	s.state = held
	m.grants = slices.DeleteFunc(m.grants, func(o *share) bool { return o == s })
	return true
}

// withdraw ends a wish, or a grant that was not accepted.
func (m *machine) withdraw(s *share) {
	switch s.state {
	case granted:
		m.grants = slices.DeleteFunc(m.grants, func(o *share) bool { return o == s })
		s.pass -= s.stride
	case waiting:
	default:
		return
	}
	m.stop(s)
	m.settle()
}

// giveBack ends a grant that was not used.
func (m *machine) giveBack(s *share) {
	if s.state != held {
		return
	}
	s.pass -= s.stride
	m.stop(s)
	m.settle()
}

// done ends an execution; with again the instance wants the next one before anybody
// else gets what it had.
func (m *machine) done(s *share, again bool) bool {
	if s.state != held {
		return false
	}
	m.stop(s)
	if again {
		m.queue(s)
	}
	m.settle()
	return m.accept(s)
}

// settle grants what can be granted.
func (m *machine) settle() {
	if len(m.line) == 0 {
		return
	}
	for _, p := range m.pools {
		p.reserved = 0
	}
	kept := m.line[:0]
	for _, s := range m.line {
		if !s.fits() {
			for _, c := range s.claims {
				c.pool.reserved += c.count
			}
			kept = append(kept, s)
			continue
		}
		for _, c := range s.claims {
			c.pool.used += c.count
		}
		s.state = granted
		m.pass = max(m.pass, s.pass)
		s.pass += s.stride
		m.grants = append(m.grants, s)
	}
	clear(m.line[len(kept):])
	m.line = kept
}

func (s *share) fits() bool {
	for _, c := range s.claims {
		if c.count > 0 && c.pool.used+c.pool.reserved+c.count > c.pool.size {
			return false
		}
	}
	return true
}
