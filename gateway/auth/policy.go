package auth

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// The words of a policy that stand for callers of a kind.
const (
	anonymous     = "anonymous"     // who showed nothing
	authenticated = "authenticated" // who proved a name
)

// Policy says which rights principals have. It does not change once parsed.
type Policy struct {
	closedHealth bool
	rules        []rule
	// about are the rules that are about a principal, as far as it was asked for.
	about *generations[*infer.Principal, []*rule]
}

// rule gives rights to whom it names; what no rule gives nobody has.
type rule struct {
	line          int
	principals    []glob
	groups        []glob
	anonymous     bool
	authenticated bool
	rights        Right
	models        []glob // nil: all of them
}

// aboutBound is for how many principals the rules are remembered.
const aboutBound = 16384

// ParsePolicy reads a policy; name is the file's in errors, which have its lines.
func ParsePolicy(name string, data []byte) (*Policy, error) {
	f := &faults{file: name}
	p := &Policy{about: newGenerations[*infer.Principal, []*rule](aboutBound)}
	if err := configfile.Document(data, ""); err != nil {
		return nil, fmt.Errorf("%s: %w; a policy without rules denies everything; if that is meant, give anonymous health", name, err)
	}
	doc := f.document(data)
	if doc != nil {
		f.mapping(doc, "the policy",
			field{"health", func(n *yaml.Node) {
				switch n.Value {
				case "open":
				case "closed":
					p.closedHealth = true
				default:
					f.at(n, "'health' is open or closed")
				}
			}},
			field{"rules", func(n *yaml.Node) {
				f.list(n, "'rules'", func(e *yaml.Node) { p.rules = append(p.rules, f.rule(e)) })
			}})
	}
	if len(f.errs) == 0 && len(p.rules) == 0 {
		f.errs = append(f.errs, fmt.Errorf("%s: a policy without rules denies everything; if that is meant, give anonymous health", name))
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (f *faults) rule(n *yaml.Node) rule {
	r := rule{line: n.Line}
	var principals, groups, actions, models []string
	f.mapping(n, "a rule", f.textsInto("principals", &principals), f.textsInto("groups", &groups),
		f.textsInto("actions", &actions), f.textsInto("models", &models))
	for _, p := range principals {
		switch p {
		case anonymous:
			r.anonymous = true
		case authenticated:
			r.authenticated = true
		default:
			r.principals = f.glob(n, r.principals, p)
		}
	}
	for _, g := range groups {
		r.groups = f.glob(n, r.groups, g)
	}
	for _, m := range models {
		r.models = f.glob(n, r.models, m)
	}
	for _, a := range actions {
		right, err := parseRight(a)
		if err != nil {
			f.at(n, "%s", err)
		}
		if wide := right & serverWide; wide != 0 && len(models) > 0 {
			f.at(n, "'%s' has rights that are of no one model (%s): give it in a rule without models", a, wide)
		}
		r.rights |= right
	}
	if n.Kind == yaml.MappingNode && len(principals)+len(groups) == 0 {
		f.at(n, "a rule needs principals or groups")
	}
	if n.Kind == yaml.MappingNode && len(actions) == 0 {
		f.at(n, "a rule needs actions")
	}
	return r
}

func (f *faults) glob(n *yaml.Node, to []glob, pattern string) []glob {
	g, err := newGlob(pattern)
	if err != nil {
		f.at(n, "'%.60s…': %s", pattern, err)
	}
	return append(to, g)
}

// applies says that a rule is about a caller.
func (r *rule) applies(p *infer.Principal) bool {
	if p == nil || p.Name == "" {
		return r.anonymous
	}
	if r.authenticated || anyMatch(r.principals, p.Name) {
		return true
	}
	return len(r.groups) > 0 && slices.ContainsFunc(p.Groups, func(g string) bool { return anyMatch(r.groups, g) })
}

// covers says that a rule gives a right on a model. Without a model, rights that are
// about all models at once need a rule about all of them; others are given, and what is
// of one model is decided when it is known.
func (r *rule) covers(right Right, model string) bool {
	switch {
	case r.rights&right == 0:
		return false
	case r.models == nil:
		return true
	case model == "":
		return right&whole == 0
	}
	return anyMatch(r.models, model)
}

// find gives the first rule by which p has the right; nil: there is none.
func (p *Policy) find(who *infer.Principal, right Right, model string) *rule {
	for _, r := range p.rulesOf(who) {
		if r.covers(right, model) {
			return r
		}
	}
	return nil
}

// rulesOf are the rules that are about a principal, in the file's order.
func (p *Policy) rulesOf(who *infer.Principal) []*rule {
	if rules, ok := p.about.get(who); ok {
		return rules
	}
	var rules []*rule
	for i := range p.rules {
		if r := &p.rules[i]; r.applies(who) {
			rules = append(rules, r)
		}
	}
	p.about.put(who, rules)
	return rules
}

// allows decides.
func (p *Policy) allows(who *infer.Principal, right Right, model string) bool {
	if right == RightHealth && !p.closedHealth {
		return true
	}
	return p.find(who, right, model) != nil
}

// Explain says in words whether a caller has what action names, on a model ("": none
// named), and by which line of the file. Its error is an action that there is not.
func (p *Policy) Explain(who *infer.Principal, action, model string) (allowed bool, why string, err error) {
	want, err := parseRight(action)
	if err != nil {
		return false, "", err
	}
	allowed = true
	for _, n := range rightNames {
		right := n.right
		if right&want == 0 || right&(right-1) != 0 || n.name == "infer" {
			continue
		}
		line := fmt.Sprintf("%s: denied, no rule gives it", n.name)
		if r := p.find(who, right, model); r != nil {
			line = fmt.Sprintf("%s: allowed by the rule in line %d", n.name, r.line)
		} else if right == RightHealth && !p.closedHealth {
			line = n.name + ": allowed, health is open"
		} else {
			allowed = false
		}
		why += line + "\n"
	}
	return allowed, why, nil
}
