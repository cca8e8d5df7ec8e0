package ratelimit

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// Limiter is what the models of a gateway share. Its methods may be called from any
// goroutine.
type Limiter struct {
	told atomic.Bool // there are grants to be told

	mu sync.Mutex
	m  *machine // mu
}

// New makes a limiter. given is how much there is of each resource; none: as much as the
// neediest instance needs.
func New(given []Resource) *Limiter { return &Limiter{m: newMachine(given)} }

// Needed says that one of the instances needs something. A model version of which none
// does is not registered: it is never made to wait.
func Needed(instances []Instance) bool {
	return slices.ContainsFunc(instances, func(in Instance) bool { return len(in.Needs) > 0 })
}

// Register takes in the instances of a model version, one of Instances for each; granted
// is schedule.NewLimiter's. Where there is too little of a resource, or it is global here
// and belongs to a device there, the error is InvalidArg in Triton's words. Who gets a
// Member calls Close.
func (l *Limiter) Register(instances []Instance, granted func(i int)) (*Member, error) {
	m := &Member{l: l, granted: granted}
	var err error
	l.mu.Lock()
	m.shares, err = l.m.add(m, instances)
	l.changed()
	l.mu.Unlock()
	l.flush()
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Instances are those of a completed config, in the order of its instance groups.
// Instances on the CPU use the resources of device 0, as in the original.
// Source: message ModelRateLimiter, proto/modelconfig/model_config.proto.
func Instances(cfg *modelconfig.ModelConfig) []Instance {
	var all []Instance
	for _, g := range cfg.GetInstanceGroup() {
		devices := []int32{0}
		if g.GetKind() == modelconfig.ModelInstanceGroup_KIND_GPU {
			devices = g.GetGpus()
		}
		for range g.GetCount() {
			for _, device := range devices {
				in := Instance{Priority: g.GetRateLimiter().GetPriority()}
				for _, r := range g.GetRateLimiter().GetResources() {
					n := Need{Name: r.GetName(), Count: int64(r.GetCount()), Device: int(device)}
					if r.GetGlobal() {
						n.Device = Global
					}
					in.Needs = append(in.Needs, n)
				}
				all = append(all, in)
			}
		}
	}
	return all
}

// changed is called with mu held after anything that may have made grants.
func (l *Limiter) changed() { l.told.Store(len(l.m.grants) > 0) }

// flush tells of grants, one by one and without the lock: a scheduler that is told may
// give back at once, and so make others.
func (l *Limiter) flush() {
	for l.told.Load() {
		l.mu.Lock()
		if len(l.m.grants) == 0 {
			l.mu.Unlock()
			return
		}
		s := l.m.grants[0]
		l.m.grants = slices.Delete(l.m.grants, 0, 1)
		l.changed()
		l.mu.Unlock()
		s.member.granted(s.index)
	}
}

// Member is the part of one model version in a Limiter. It fits schedule.Limiter, whose
// comments say what its methods do.
type Member struct {
	l       *Limiter
	shares  []*share
	granted func(i int)
}

// Want asks for what instance i needs.
func (m *Member) Want(i int) bool { return m.do(i, m.l.m.want) }

// Accept takes a grant.
func (m *Member) Accept(i int) bool { return m.do(i, m.l.m.accept) }

// Withdraw takes a wish back.
func (m *Member) Withdraw(i int) {
	m.do(i, func(s *share) bool { m.l.m.withdraw(s); return true })
}

// Return gives back an unused grant.
func (m *Member) Return(i int) {
	m.do(i, func(s *share) bool { m.l.m.giveBack(s); return true })
}

// Done ends an execution.
func (m *Member) Done(i int, again bool) bool {
	return m.do(i, func(s *share) bool { return m.l.m.done(s, again) })
}

func (m *Member) do(i int, what func(*share) bool) bool {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if m.shares == nil {
		return false // closed
	}
	yes := what(m.shares[i])
	m.l.changed()
	return yes
}

// Flush tells of grants.
func (m *Member) Flush() { m.l.flush() }

// Close takes the instances out. What comes of them later is ignored.
func (m *Member) Close() {
	m.l.mu.Lock()
	m.l.m.drop(m.shares)
	m.shares = nil
	m.l.changed()
	m.l.mu.Unlock()
	m.l.flush()
}
