package xds

import "slices"

// Switch keeps routes on their old targets until the new ones can answer. The zero
// value has seen nothing. It is not safe for concurrent use.
type Switch struct {
	current map[[2]string][]Target
}

// Held is a route that waits: the model and version it is for, and the first target
// that is not ready on Gateway ("": there is no gateway in its group).
type Held struct {
	Model, Version string
	Target         Target
	Gateway        string
}

// Restore takes the targets of routes that counted before this Switch was there.
func (s *Switch) Restore(routes []Route) {
	s.current = make(map[[2]string][]Target, len(routes))
	for i := range routes {
		s.current[[2]string{routes[i].Model, routes[i].Version}] = routes[i].Targets
	}
}

// Step gives back t with the targets that count now, and the routes whose new targets
// wait. A target is ready when every live gateway of its group has it. A route that was
// not there before takes its targets at once, and so does one whose old targets no
// gateway has any more.
func (s *Switch) Step(t *Topology) (*Topology, []Held) {
	out := *t
	out.Routes = slices.Clone(t.Routes)
	next := make(map[[2]string][]Target, len(t.Routes))
	var held []Held
	for i := range out.Routes {
		r := &out.Routes[i]
		key := [2]string{r.Model, r.Version}
		old, known := s.current[key]
		if known && !slices.Equal(old, r.Targets) {
			wait := t.waits(r)
			was := *r
			was.Targets = old
			if wait != nil && t.answers(&was) {
				held = append(held, *wait)
				r.Targets = old
			}
		}
		next[key] = r.Targets
	}
	s.current = next
	return &out, held
}

// waits is the first target of r that is not ready everywhere; nil: all are.
func (t *Topology) waits(r *Route) *Held {
	for i := range r.Targets {
		want := r.target(i)
		if want.Weight == 0 {
			continue
		}
		held := &Held{Model: r.Model, Version: r.Version, Target: want}
		live := 0
		for k := range t.Gateways {
			g := &t.Gateways[k]
			if g.group() != want.Group || !g.live() {
				continue
			}
			live++
			if !g.has(want.Model, want.Version) {
				held.Gateway = g.Name
				return held
			}
		}
		if live == 0 {
			return held
		}
	}
	return nil
}

// answers says that each target of r is ready on some gateway.
func (t *Topology) answers(r *Route) bool {
	for i := range r.Targets {
		want := r.target(i)
		has := func(g Gateway) bool {
			return g.group() == want.Group && g.live() && g.has(want.Model, want.Version)
		}
		if want.Weight > 0 && !slices.ContainsFunc(t.Gateways, has) {
			return false
		}
	}
	return len(r.Targets) > 0
}
