package admission

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// Kind is what a limit counts.
type Kind uint8

// The kinds. Rates come back with time; Concurrency and BytesInFlight are held until a
// call ends, Sequences until the sequence does.
const (
	Requests      Kind = iota // calls; of a stream, the requests in it
	Bytes                     // of bodies
	Elements                  // of input tensors
	Compute                   // microseconds, of what the batch took the share by rows
	Concurrency               // open calls
	BytesInFlight             // of bodies of open calls
	Sequences                 // that live, from START on until their slot is free
	numKinds
)

var kindNames = [numKinds]string{"requests", "bytes", "elements", "compute", "concurrency", "bytes_in_flight",
	"sequences"}

// String is the kind's name in the file.
func (k Kind) String() string { return kindNames[k] }

func (k Kind) held() bool { return k >= Concurrency }

// Each says who is measured together.
type Each uint8

// The ways to measure.
const (
	EachRule      Each = iota // all that the rule matches
	EachPrincipal             // each principal for itself; callers without a name are one
	EachModel
	EachBoth // each principal with each model
	EachRemote
)

var eachNames = []string{"rule", "principal", "model", "principal+model", "remote"}

// Limit is one bound of a rule.
type Limit struct {
	Kind  Kind
	Rate  float64 // units a second; 0: none is held back by rate
	Burst float64 // units
	Most  int64   // Concurrency, BytesInFlight, Sequences
	text  string  // as it is told to callers: "requests 100/s"
	speed speed
}

// Rule is one rule of the file: all rules that match a call count, each with all its
// limits.
type Rule struct {
	Name       string
	principals []string // globs; both empty: everybody
	groups     []string
	models     []string // globs; empty: all, also calls that name none
	actions    uint32   // bit set of infer.Action
	each       Each
	envoy      bool // counted at Envoy's rate limit service; else here
	shadow     bool // counts what it would refuse, and lets it pass
	last       bool // no rule behind it counts for whom it matches
	limits     []*Limit
	index      int
}

// Weight is a share of a full queue.
type Weight struct {
	principals, groups []string
	weight             int
}

// Rules are what a file says.
type Rules struct {
	rules   []*Rule
	weights []Weight
	track   int // accounts at most
	byModel bool
	// sequences says that some rule limits them.
	sequences bool
	remote    bool // some rule tells remote addresses apart
}

// subject is who does what.
type subject struct {
	principal string
	groups    []string
	model     string
	unknown   bool // the model is not known yet
	action    infer.Action
	envoy     bool // asked by the rate limit service
}

// The words in `principals` that stand for callers of a kind, as in the policy file.
const (
	anonymous     = "anonymous"     // who showed nothing
	authenticated = "authenticated" // who proved a name
)

func (r *Rule) dependsOnModel() bool {
	return len(r.models) > 0 || r.each == EachModel || r.each == EachBoth
}

// concerns says that the rule is for such calls, whatever their model.
func (r *Rule) concerns(s *subject) bool {
	return r.actions&(1<<s.action) != 0 && matches(r.principals, r.groups, s)
}

func (r *Rule) matchesModel(model string) bool {
	return len(r.models) == 0 || slices.ContainsFunc(r.models, func(p string) bool { return glob(p, model) })
}

func matches(principals, groups []string, s *subject) bool {
	if len(principals) == 0 && len(groups) == 0 {
		return true
	}
	if s.principal == "" && len(s.groups) == 0 {
		return slices.Contains(principals, anonymous)
	}
	if s.principal != "" && slices.ContainsFunc(principals, func(p string) bool { return p == authenticated || glob(p, s.principal) }) {
		return true
	}
	return slices.ContainsFunc(groups, func(p string) bool {
		return slices.ContainsFunc(s.groups, func(g string) bool { return glob(p, g) })
	})
}

// early lists the rules that count before the model is known: those that don't look at
// it, up to one which might end the list.
func (r *Rules) early(s *subject) []*Rule {
	var out []*Rule
	for _, rule := range r.rules {
		switch {
		case !rule.concerns(s):
			continue
		case !rule.dependsOnModel():
			out = append(out, rule)
		}
		if rule.last {
			break
		}
	}
	return out
}

// all lists the rules that count for a subject whose model is known.
func (r *Rules) all(s *subject) []*Rule {
	var out []*Rule
	for _, rule := range r.rules {
		if !rule.concerns(s) || !rule.matchesModel(s.model) {
			continue
		}
		out = append(out, rule)
		if rule.last {
			break
		}
	}
	return out
}

// late lists what early left for when the model is known.
func (r *Rules) late(s *subject) []*Rule {
	before := r.early(s)
	return slices.DeleteFunc(r.all(s), func(rule *Rule) bool { return slices.Contains(before, rule) })
}

// weight is the caller's share; 0: the file says nothing.
func (r *Rules) weight(s *subject) int {
	for i := range r.weights {
		if w := &r.weights[i]; matches(w.principals, w.groups, s) {
			return w.weight
		}
	}
	return 0
}

// glob says whether s is of a pattern in which * stands for any text, also none and
// also with slashes, and ? for one character.
func glob(pattern, s string) bool {
	star, back := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, back = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			back++
			p, i = star+1, back
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
