package picker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds/orca"
)

// Rules are what a State goes by. Zeros are the defaults of filled.
type Rules struct {
	// Fresh is how long a report counts.
	Fresh time.Duration
	// Spill is how many times worse than the best gateway the one may be that has the
	// sequence's or the answer's place by its hash.
	Spill float64
	// Idle is how long a sequence without a call is remembered.
	Idle time.Duration
	// Lag is how long after its START a sequence may be unknown here that another picker has
	// placed; the clocks of machines may differ by less.
	Lag time.Duration
	// Sequences bounds those that are remembered; the one idle longest goes first.
	Sequences int
}

func (r Rules) filled() Rules {
	if r.Fresh <= 0 {
		r.Fresh = 3 * time.Second
	}
	if r.Spill <= 0 {
		r.Spill = 2
	}
	if r.Idle <= 0 {
		r.Idle = 10 * time.Minute
	}
	if r.Lag <= 0 {
		r.Lag = 5 * time.Second
	}
	if r.Sequences <= 0 {
		r.Sequences = 1 << 18
	}
	return r
}

// Call is what is known of a call.
type Call struct {
	Model, Version string // Version "": any
	Group          string // of the gateways that answer it
	// Scope tells apart who may use the same correlation IDs. Loose says that calls of one
	// sequence may come in several scopes: the caller's credentials are all that is known.
	Scope string
	Loose bool
	// Sequence is the correlation ID, "" for none. Start and End are its flags, Bare says
	// that they could not be read: then the first call of a sequence is its start.
	Sequence         string
	Start, End, Bare bool
	// Key says which calls have equal answers, probably; 0: not known.
	Key uint64
}

// Why says what decided.
type Why string

// The reasons of a pick. Those of Refused are the reasons of a refusal.
const (
	WhyLoad       Why = "load"              // where it is done first
	WhyCache      Why = "cache"             // where its answer is, if it was asked before
	WhySpill      Why = "cache_spill"       // there is too much to do there
	WhySequence   Why = "sequence"          // its sequence is there
	WhyStart      Why = "sequence_start"    // a new sequence
	WhyGuess      Why = "sequence_guess"    // no gateway has its sequence
	WhyNoModel    Why = "no_model"          // no gateway has it ready
	WhyNobody     Why = "no_gateway"        // no gateway reports
	WhyUnnamed    Why = "no_model_named"    // the call is for no model
	WhyLost       Why = "sequence_lost"     // refused: its sequence ended with its gateway
	WhyUnplaced   Why = "sequence_unplaced" // refused: its sequence may be at a gateway that has not told yet
	WhyUnreadable Why = "unreadable"        // its body could not be read
)

// Pick is a decision. Gateway "" leaves it to Envoy, unless Refused: then the call is to be
// refused, since its sequence has ended with Owner, or may be where nobody can ask.
type Pick struct {
	Gateway   string
	Why       Why
	Refused   bool
	Owner     string          // of a lost sequence
	Placement infer.Placement // what the gateway is told of the call's sequence; Key "": nothing
}

// gateway is one gateway as the State knows it.
type gateway struct {
	name     string
	group    string
	draining bool // takes nothing new
	dead     bool // its reports ended and it can't be reached; it may come back as it was
	reported bool
	at       time.Duration // of the last report
	load     orca.Gateway
	life     float64            // orca.Gateway.Started
	sent     map[sentTo]float64 // calls sent there since its last report
	owned    map[*sequence]bool // sequences that live there
	feed     feed
}

// sentTo is a model version, as far as calls name it.
type sentTo struct{ model, version string }

// State decides. Its zero value is not ready: NewState.
type State struct {
	rules    Rules
	gateways []*gateway // by name
	table    table
	eligible []candidate // scratch
	// epoch makes the epochs of placements: each is newer than after, and than those before.
	epoch func(after uint64) uint64
}

// candidate is a gateway that could take a call.
type candidate struct {
	g     *gateway
	m     *orca.Model
	cost  float64 // seconds until the call would be done
	place uint64  // by the hash: the highest comes first
}

// NewState makes a State that knows no gateway.
func NewState(rules Rules) *State {
	rules = rules.filled()
	return &State{rules: rules, table: newTable(rules), epoch: infer.NewEpoch}
}

// Member is a gateway that there is.
type Member struct {
	Name, Group string
	Draining    bool // takes nothing new
}

// Set says which gateways there are. One that is not among them any more is dead, with
// its sequences.
func (s *State) Set(members []Member) {
	var next []*gateway
	for _, m := range members {
		g := s.find(m.Name)
		if g == nil {
			g = &gateway{name: m.Name, sent: map[sentTo]float64{}, owned: map[*sequence]bool{}}
		}
		g.group, g.draining = m.Group, m.Draining
		next = append(next, g)
	}
	slices.SortFunc(next, func(a, b *gateway) int { return strings.Compare(a.name, b.name) })
	for _, g := range s.gateways {
		if !slices.Contains(next, g) {
			g.die()
		}
	}
	s.gateways = next
}

func (s *State) find(name string) *gateway {
	i, ok := slices.BinarySearchFunc(s.gateways, name, func(g *gateway, name string) int { return strings.Compare(g.name, name) })
	if !ok {
		return nil
	}
	return s.gateways[i]
}

// Report takes what a gateway said at now. A gateway that started since has forgotten
// its sequences.
func (s *State) Report(now time.Duration, name string, load orca.Gateway) {
	g := s.find(name)
	if g == nil {
		return
	}
	if g.reported && g.life != load.Started {
		g.die()
	}
	g.reported, g.dead, g.at, g.load, g.life = true, false, now, load, load.Started
	clear(g.sent)
}

// Gone says that a gateway can't be reached any more. Its sequences end with their next
// calls, unless it reports before those in the life that it had: then it was only slow. ended
// says that its process is gone for certain.
func (s *State) Gone(name string, ended bool) {
	if g := s.find(name); g != nil {
		g.dead = true
		g.feed.told = g.feed.told || ended
	}
}

// die ends the sequences of a gateway; they are remembered, so that their next calls can
// be told.
func (g *gateway) die() {
	for q := range g.owned {
		q.lose()
	}
}

// Pick decides on a call at now. random breaks ties.
func (s *State) Pick(now time.Duration, c *Call, random uint64) Pick {
	s.table.expire(now)
	if c.Model == "" {
		return Pick{Why: WhyUnnamed}
	}
	if c.Sequence != "" && !c.Start {
		if p, ok := s.continued(now, c); ok {
			return p
		}
	}
	if why := s.candidates(now, c); why != "" {
		return Pick{Why: why}
	}
	if c.Sequence != "" {
		return s.place(now, c)
	}
	if c.Key != 0 && s.caches() {
		return s.likely(c)
	}
	g := s.quickest(random)
	g.sent[sentTo{c.Model, c.Version}]++
	return Pick{Gateway: g.name, Why: WhyLoad}
}

// likely is the pick of a call whose answer may be kept.
func (s *State) likely(c *Call) Pick {
	chosen, why := s.first(c.Key), WhyCache
	if chosen.place != s.eligible[0].place {
		why = WhySpill
	}
	chosen.g.sent[sentTo{c.Model, c.Version}]++
	return Pick{Gateway: chosen.g.name, Why: why}
}

// caches says that gateways keep answers of the call's model.
func (s *State) caches() bool {
	for i := range s.eligible {
		if s.eligible[i].m.Cache {
			return true
		}
	}
	return false
}

// candidates finds who could take the call, or why nobody can.
func (s *State) candidates(now time.Duration, c *Call) Why {
	s.eligible = s.eligible[:0]
	why := WhyNobody
	for _, g := range s.gateways {
		if g.dead || !g.reported || now-g.at > s.rules.Fresh || g.group != c.Group {
			continue
		}
		if why == WhyNobody {
			why = WhyNoModel
		}
		if g.draining || !g.load.Ready {
			continue
		}
		if m := version(g.load.Models[c.Model], c.Version); m != nil {
			s.eligible = append(s.eligible, candidate{g: g, m: m})
		}
	}
	if len(s.eligible) == 0 {
		return why
	}
	s.weigh(now, c)
	return ""
}

// version is the version that a call means: the newest where it names none.
func version(versions map[string]*orca.Model, name string) *orca.Model {
	if name != "" {
		return versions[name]
	}
	newest := ""
	for v := range versions {
		if newest == "" || cmp.Or(cmp.Compare(len(v), len(newest)), strings.Compare(v, newest)) > 0 {
			newest = v
		}
	}
	return versions[newest]
}

// weigh says of each candidate when the call would be done there.
func (s *State) weigh(now time.Duration, c *Call) {
	mean, n := 0.0, 0.0
	for i := range s.eligible {
		if v := s.eligible[i].m.Service; v > 0 {
			mean, n = mean+v, n+1
		}
	}
	if n > 0 {
		mean /= n
	} else {
		mean = 1e-3
	}
	for i := range s.eligible {
		e := &s.eligible[i]
		service := e.m.Service
		if service <= 0 {
			service = mean
		}
		if e.m.Errors > 0 { // who fails is quick, and no better for it
			service = max(service, mean) * (1 + 10*e.m.Errors)
		}
		instances := max(e.m.Instances, 1)
		ahead := max(e.m.Inflight, e.m.Waiting+e.m.Busy) + e.g.sent[sentTo{c.Model, c.Version}]
		// what was ahead at the report has been worked on since
		ahead = max(0, ahead-(now-e.g.at).Seconds()*instances/service)
		e.cost = (ahead + 1) / instances * service
		if ahead+1 <= instances {
			e.cost = service // an instance is free
		}
	}
}

// near is how much two costs may differ and count as equal: reports are a moment old.
const near = 1.05

// quickest is the candidate where the call is done first; one of them by random.
func (s *State) quickest(random uint64) *gateway {
	best := s.best()
	n := uint64(0)
	for i := range s.eligible {
		if s.eligible[i].cost <= best*near {
			n++
		}
	}
	k := random % n
	for i := range s.eligible {
		if s.eligible[i].cost > best*near {
			continue
		}
		if k == 0 {
			return s.eligible[i].g
		}
		k--
	}
	return s.eligible[0].g // not reached: one of them is the best
}

func (s *State) best() float64 {
	best := s.eligible[0].cost
	for i := range s.eligible {
		best = min(best, s.eligible[i].cost)
	}
	return best
}

// first is the candidate that comes first for a key, or the next one that has not much
// more to do than the best. Other pickers put them in the same order.
func (s *State) first(key uint64) *candidate {
	for i := range s.eligible {
		s.eligible[i].place = mix(key ^ hash(s.eligible[i].g.name, ""))
	}
	slices.SortFunc(s.eligible, func(a, b candidate) int { return cmp.Compare(b.place, a.place) })
	limit := s.best() * s.rules.Spill
	for i := range s.eligible {
		e := &s.eligible[i]
		if e.cost <= limit+2*max(e.m.Service, 1e-3) {
			return e
		}
	}
	return &s.eligible[0] // not reached: the best is within the limit
}

// hash is FNV-1a over two strings and what parts them.
// Source: RFC 9923.
func hash(a, b string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(a) {
		h = (h ^ uint64(a[i])) * 1099511628211
	}
	h *= 1099511628211 // a zero byte
	for i := range len(b) {
		h = (h ^ uint64(b[i])) * 1099511628211
	}
	return h
}

// mix spreads a number over all bits.
// Source: the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// traits say whether calls of a model belong to sequences anywhere, and whether its
// answers are kept.
func (s *State) traits(model, name string) (sequence, cache bool) {
	for _, g := range s.gateways {
		if m := version(g.load.Models[model], name); m != nil {
			sequence, cache = sequence || m.Sequence, cache || m.Cache
		}
	}
	return sequence, cache
}
