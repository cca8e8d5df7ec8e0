package picker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/transcript"
	"github.com/sluice-serve/sluice/proto/mesh"
	"github.com/sluice-serve/sluice/xds/orca"
)

var update = transcript.Flag()

// Transcripts: `set NAME…` (a leading ~ is draining, NAME@GROUP one of a group), `report NAME LIFE MODEL/VERSION
// key=value…` (several models by further names), `gone NAME`, `gone NAME ended`, `told NAME…` (of no sequence),
// `tells NAME KEY EPOCH STATE…` (`tells NAME` begins, `complete` ends what lives at first), `at MS`, and `pick
// model=… seq=… start end bare key=…`, whose decision is written under it.
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte {
		s := NewState(Rules{Idle: time.Minute, Sequences: 4})
		var now time.Duration
		last := uint64(5e9)
		s.epoch = func(after uint64) uint64 {
			last = max(last, after) + 1
			return last
		}
		var out bytes.Buffer
		return transcript.Replay(t, text, &out, func(verb string, args []string) error {
			switch verb {
			case "set":
				var members []Member
				for _, a := range args {
					name, draining := strings.CutPrefix(a, "~")
					name, group, _ := strings.Cut(name, "@")
					members = append(members, Member{name, group, draining})
				}
				s.Set(members)
			case "at":
				ms, err := strconv.Atoi(args[0])
				if err != nil {
					return err
				}
				now = time.Duration(ms) * time.Millisecond
			case "report":
				load, err := parseReport(args[1:])
				if err != nil {
					return err
				}
				s.Report(now, args[0], load)
			case "gone":
				s.Gone(args[0], len(args) > 1)
			case "told":
				for _, name := range args {
					s.Follow(name)
					s.Told(name)
				}
			case "tells":
				return tell(s, now, args)
			case "pick":
				c, err := parseCall(args)
				if err != nil {
					return err
				}
				p := s.Pick(now, &c, 0)
				switch {
				case p.Why == WhyUnplaced:
					fmt.Fprintf(&out, "  refused: %s\n", p.Why)
				case p.Refused:
					fmt.Fprintf(&out, "  refused: %s, it was at %s\n", p.Why, p.Owner)
				case p.Gateway == "":
					fmt.Fprintf(&out, "  left to Envoy: %s\n", p.Why)
				default:
					fmt.Fprintf(&out, "  %s: %s%s\n", p.Gateway, p.Why, placedText(&p))
				}
			default:
				return fmt.Errorf("no event %s", verb)
			}
			return nil
		})
	})
}

// placedText is what a gateway is told, with epochs counted from 5e9, and unknown ones from 0.
func placedText(p *Pick) string {
	switch {
	case p.Placement.Key == "":
		return ""
	case p.Placement.Unknown:
		return ", unknown"
	}
	return fmt.Sprintf(", epoch %d of %s", p.Placement.Epoch-5e9, p.Placement.Key)
}

// tell is the event tells.
func tell(s *State, now time.Duration, args []string) error {
	name, args := args[0], args[1:]
	switch {
	case len(args) == 0:
		s.Follow(name)
		return nil
	case args[0] == "complete":
		s.Told(name)
		return nil
	}
	epoch, err := strconv.ParseUint(args[1], 10, 64)
	state, ok := mesh.PlacedSequence_State_value[strings.ToUpper(args[2])]
	if err != nil || !ok {
		return fmt.Errorf("tells %v", args)
	}
	s.Placed(now, name, &mesh.PlacedSequence{Key: args[0], Epoch: 5e9 + epoch, State: mesh.PlacedSequence_State(state)})
	return nil
}

func parseReport(args []string) (orca.Gateway, error) {
	life, err := strconv.ParseFloat(args[0], 64)
	g := orca.Gateway{Started: life, Ready: true, Models: map[string]map[string]*orca.Model{}}
	var m *orca.Model
	for _, a := range args[1:] {
		key, value, ok := strings.Cut(a, "=")
		if !ok {
			name, version, named := strings.Cut(a, "/")
			if !named {
				g.Ready = a != "unready"
				continue
			}
			m = &orca.Model{Instances: 1}
			if g.Models[name] == nil {
				g.Models[name] = map[string]*orca.Model{}
			}
			g.Models[name][version] = m
			continue
		}
		v, fault := strconv.ParseFloat(value, 64)
		if fault != nil {
			return g, fault
		}
		switch key {
		case "inflight":
			m.Inflight = v
		case "instances":
			m.Instances = v
		case "service":
			m.Service = v
		case "errors":
			m.Errors = v
		case "sequence":
			m.Sequence = v > 0
		case "cache":
			m.Cache = v > 0
		default:
			return g, fmt.Errorf("no figure %s", key)
		}
	}
	return g, err
}

func parseCall(args []string) (Call, error) {
	var c Call
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "model":
			c.Model, c.Version, _ = strings.Cut(value, "/")
		case "seq":
			c.Sequence = value
		case "start":
			c.Start = true
		case "end":
			c.End = true
		case "group":
			c.Group = value
		case "bare":
			c.Bare = true
		case "key":
			c.Key = hash(value, "")
		default:
			return c, fmt.Errorf("a call has no %s", key)
		}
	}
	return c, nil
}

// Whatever happens to gateways, a sequence's calls go to one gateway in one of its lives
// or are refused; a refusal comes only after that gateway died; new calls go to gateways
// that are alive, ready and have the model.
func TestSequencesNeverMove(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, r)
		for range 400 {
			w.step()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// world is gateways as they are, against which a State is held.
type world struct {
	t         *testing.T
	r         *rand.Rand
	s         *State
	now       time.Duration
	gateways  []*model
	sequences map[string]*home
}

type model struct {
	name            string
	in              bool // in the topology
	alive, draining bool
	life            float64
	known           bool // reported since it came
}

type home struct {
	at   *model
	life float64
}

func newWorld(t *testing.T, r *rand.Rand) *world {
	w := &world{t: t, r: r, s: NewState(Rules{Idle: time.Hour}), sequences: map[string]*home{}}
	for i := range 4 {
		w.gateways = append(w.gateways, &model{name: "g" + strconv.Itoa(i), in: true, alive: true, life: 1})
	}
	w.set()
	return w
}

func (w *world) set() {
	var members []Member
	for _, g := range w.gateways {
		if g.in {
			members = append(members, Member{Name: g.name, Draining: g.draining})
		}
	}
	w.s.Set(members)
}

func (w *world) report(g *model) {
	if !g.in || !g.alive {
		return
	}
	if !g.known {
		w.s.Follow(g.name)
		w.s.Told(g.name)
	}
	g.known = true
	w.s.Report(w.now, g.name, orca.Gateway{Started: g.life, Ready: true, Models: map[string]map[string]*orca.Model{
		"m": {"1": {Instances: 1, Inflight: float64(w.r.IntN(5)), Service: .01 * float64(1+w.r.IntN(3)), Sequence: true}}}})
}

func (w *world) step() {
	g := w.gateways[w.r.IntN(len(w.gateways))]
	w.now += time.Duration(w.r.IntN(200)) * time.Millisecond
	switch n := w.r.IntN(20); {
	case n < 10:
		w.call(strconv.Itoa(w.r.IntN(4)))
	case n < 15:
		w.report(g)
	case n == 15 && g.alive: // killed, and noticed
		g.alive, g.known = false, false
		w.s.Gone(g.name, false)
	case n == 15: // slow: it is as it was, and reports again
		w.s.Gone(g.name, false)
		g.known = false
		if w.r.IntN(2) == 0 {
			w.call(strconv.Itoa(w.r.IntN(4)))
		}
		w.report(g)
	case n == 16 && !g.alive: // started anew
		g.alive = true
		g.life++
	case n == 17: // started anew so quickly that only its report tells
		if g.alive && g.in {
			g.life++
			w.report(g)
		}
	case n == 18:
		g.draining = !g.draining
		w.set()
	case n == 19:
		g.in = !g.in
		if !g.in {
			g.life++ // what comes back is not what went
			g.known = false
		}
		w.set()
	}
}

func (w *world) call(id string) {
	c := Call{Model: "m", Scope: []string{"", "red"}[w.r.IntN(2)], Sequence: id, Start: w.r.IntN(3) == 0,
		End: w.r.IntN(6) == 0}
	p := w.s.Pick(w.now, &c, w.r.Uint64())
	id = c.Scope + "/" + id
	h := w.sequences[id]
	switch {
	case p.Why == WhyUnplaced: // some gateway has not told yet
		return
	case p.Why == WhyGuess:
		if h != nil && h.at.alive && h.at.in && h.at.life == h.life {
			w.t.Errorf("call %+v was not known; its sequence is at %+v", c, h)
		}
		return
	case p.Refused:
		if c.Start || h == nil || (h.at.alive && h.at.in && h.at.known && h.at.life == h.life) {
			w.t.Errorf("call %+v was refused; its sequence is at %+v", c, h)
		} else {
			h.life = -1 // it stays refused until it begins anew
		}
		return
	}
	var g *model
	for _, one := range w.gateways {
		if one.name == p.Gateway {
			g = one
		}
	}
	if g == nil {
		if h != nil && !c.Start && h.at.alive && h.at.in && h.at.life == h.life {
			w.t.Errorf("call %+v was left to Envoy (%s), but its sequence lives at %s", c, p.Why, h.at.name)
		}
		return
	}
	if h != nil && h.life < 0 && !c.Start {
		w.t.Errorf("call %+v went to %s after its sequence had been refused", c, g.name)
	}
	if h != nil && !c.Start && (h.at != g || h.life != g.life) {
		w.t.Errorf("call %+v went to %s life %v, its sequence is at %s life %v", c, g.name, g.life, h.at.name, h.life)
	}
	if (c.Start || h == nil) && (!g.alive || !g.in || g.draining || !g.known) {
		w.t.Errorf("call %+v went to %+v, which takes nothing new", c, g)
	}
	w.sequences[id] = &home{g, g.life}
	if c.End {
		delete(w.sequences, id)
	}
}

// Calls go where they are done first: the long-run shares follow the gateways' speeds,
// though reports come seldom.
func TestSharesFollowSpeed(t *testing.T) {
	s := NewState(Rules{})
	s.Set([]Member{{Name: "slow"}, {Name: "fast"}})
	service := map[string]float64{"fast": .010, "slow": .040}
	left := map[string]float64{} // seconds of work
	count := map[string]int{}
	r := rand.New(rand.NewPCG(7, 7))
	var now time.Duration
	for i := range 5000 {
		if i%12 == 0 { // every 100 ms or so
			for name, each := range service {
				s.Report(now, name, orca.Gateway{Started: 1, Ready: true, Models: map[string]map[string]*orca.Model{
					"m": {"1": {Instances: 1, Inflight: left[name] / each, Service: each}}}})
			}
		}
		p := s.Pick(now, &Call{Model: "m"}, r.Uint64())
		left[p.Gateway] += service[p.Gateway]
		count[p.Gateway]++
		now += 9 * time.Millisecond // both together can take one in 8 ms
		for name := range left {
			left[name] = max(0, left[name]-.009)
		}
		if left["slow"] > .5 || left["fast"] > .5 {
			t.Fatalf("after %d calls there is %v to do", i, left)
		}
	}
	if share := float64(count["fast"]) / 5000; share < .78 || share > .95 {
		t.Errorf("fast got %.2f of the calls; .8 is its share of the work that both can do", share)
	}
}

// Two pickers that know the same gateways put sequences and cache keys in one place.
func TestPickersAgree(t *testing.T) {
	var states [2]*State
	for i := range states {
		s := NewState(Rules{})
		names := []string{"a", "b", "c"}
		if i == 1 {
			names = []string{"c", "b", "a"}
		}
		s.Set(members(names))
		for _, name := range names {
			s.Report(0, name, orca.Gateway{Started: 1, Ready: true, Models: map[string]map[string]*orca.Model{
				"m": {"1": {Instances: 4, Service: .01, Sequence: true, Cache: true}}}})
			s.Follow(name)
			s.Told(name)
		}
		states[i] = s
	}
	seen := map[string]int{}
	for i := range 300 {
		id := strconv.Itoa(i)
		first := states[0].Pick(0, &Call{Model: "m", Sequence: id, Start: true}, 1)
		second := states[1].Pick(0, &Call{Model: "m", Sequence: id}, 2)
		if first.Gateway != second.Gateway || second.Why != WhyGuess {
			t.Fatalf("sequence %s: %+v and %+v", id, first, second)
		}
		seen[first.Gateway]++
		for _, s := range states { // as reports would
			for _, g := range s.gateways {
				clear(g.sent)
			}
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if seen[name] < 60 {
			t.Errorf("%s got %d of 300 sequences", name, seen[name])
		}
	}
}

func members(names []string) []Member {
	var out []Member
	for _, name := range names {
		out = append(out, Member{Name: name})
	}
	return out
}

func BenchmarkPick(b *testing.B) {
	s := NewState(Rules{})
	var names []string
	for i := range 10 {
		names = append(names, "gateway-"+strconv.Itoa(i))
	}
	s.Set(members(names))
	for _, name := range names {
		s.Report(0, name, orca.Gateway{Started: 1, Ready: true, Models: map[string]map[string]*orca.Model{"m": {"1": {Instances: 2, Service: .01}}}})
	}
	c := Call{Model: "m"}
	b.ReportAllocs()
	for b.Loop() {
		s.Pick(0, &c, 5)
	}
}
