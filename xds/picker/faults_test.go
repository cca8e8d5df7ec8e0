package picker

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/mesh"
	"github.com/sluice-serve/sluice/xds/orca"
)

// Sequences are answered by their newest START's life alone, whatever happens to pickers: one
// that is away, slow, or started anew and not told yet, with gateways that are killed, hang, or
// get calls that were meant for others; and two beside each other, each of which is started
// anew at times.
func TestSequencesUnderFaults(t *testing.T) {
	for _, pickers := range []int{1, 2} {
		t.Run(strconv.Itoa(pickers), func(t *testing.T) {
			answers := 0
			for seed := range uint64(300) {
				m := newMesh(rand.New(rand.NewPCG(seed, 5)), pickers)
				for range 400 {
					if fault := m.step(); fault != "" {
						t.Fatalf("seed %d: %s", seed, fault)
					}
				}
				answers += m.answers
			}
			if answers < 300*60 {
				t.Errorf("%d steps of sequences were answered, too few to prove anything", answers)
			}
		})
	}
}

// fakeMesh is gateways, pickers and clients.
type fakeMesh struct {
	r        *rand.Rand
	now      time.Duration
	pickers  []*fakePicker
	gateways []*fakeGateway
	clients  [4]uint64 // the serial number of the START that each goes on with; 0: it must begin
	serial   uint64
	answers  int
}

// fakePicker is a State with what it is yet to be told by each gateway.
type fakePicker struct {
	state *State
	feeds map[string][]func(*State)
}

// fakeGateway keeps of a sequence the epoch and the serial number of its START.
type fakeGateway struct {
	name        string
	life        float64
	down, stuck bool
	live        map[string][2]uint64
	later       []func() // calls that came while it was stuck
}

func newMesh(r *rand.Rand, pickers int) *fakeMesh {
	m := &fakeMesh{r: r}
	for i := range 3 {
		m.gateways = append(m.gateways, &fakeGateway{name: "g" + strconv.Itoa(i), live: map[string][2]uint64{}})
	}
	for range pickers {
		p := &fakePicker{}
		m.pickers = append(m.pickers, p)
		m.restart(p)
	}
	return m
}

func (m *fakeMesh) restart(p *fakePicker) {
	p.state, p.feeds = NewState(Rules{}), map[string][]func(*State){}
	p.state.Set([]Member{{Name: "g0"}, {Name: "g1"}, {Name: "g2"}})
	for _, g := range m.gateways {
		m.follow(p, g)
	}
}

// follow connects a picker to a gateway: it is to be told all that lives there.
func (m *fakeMesh) follow(p *fakePicker, g *fakeGateway) {
	p.feeds[g.name] = nil
	if g.down {
		return
	}
	p.tell(g, func(s *State) { s.Follow(g.name) })
	for key, life := range g.live {
		p.tell(g, change(g, key, life[0], mesh.PlacedSequence_LIVES))
	}
	p.tell(g, func(s *State) { s.Told(g.name) })
}

func (p *fakePicker) tell(g *fakeGateway, what func(*State)) {
	p.feeds[g.name] = append(p.feeds[g.name], what)
}

func change(g *fakeGateway, key string, epoch uint64, state mesh.PlacedSequence_State) func(*State) {
	return func(s *State) { s.Placed(0, g.name, &mesh.PlacedSequence{Key: key, Epoch: epoch, State: state}) }
}

// deliver lets a gateway that works tell a picker the next n things, after a report.
func (m *fakeMesh) deliver(p *fakePicker, g *fakeGateway, n int) {
	if g.down || g.stuck {
		return
	}
	p.state.Report(m.now, g.name, orca.Gateway{Started: g.life, Ready: true, Models: map[string]map[string]*orca.Model{
		"m": {"1": {Instances: 1, Service: .01, Sequence: true}}}})
	for ; n > 0 && len(p.feeds[g.name]) > 0; n-- {
		p.feeds[g.name][0](p.state)
		p.feeds[g.name] = p.feeds[g.name][1:]
	}
}

// step is a call, or something that happens.
func (m *fakeMesh) step() (fault string) {
	m.now += 50 * time.Millisecond
	g, p := m.gateways[m.r.IntN(3)], m.pickers[m.r.IntN(len(m.pickers))]
	if len(m.pickers) > 1 { // what one has placed, the other is told before the next call
		for _, p := range m.pickers {
			for _, g := range m.gateways {
				m.deliver(p, g, 1<<20)
			}
		}
	}
	switch n := m.r.IntN(60); {
	case n < 40:
		return m.call(p)
	case n < 52:
		m.deliver(p, g, m.r.IntN(4))
	case n == 52:
		m.restart(p)
	case n == 53 && !g.down: // kill -9
		*g = fakeGateway{name: g.name, life: g.life, down: true, live: map[string][2]uint64{}}
		for _, p := range m.pickers {
			p.state.Gone(g.name, m.r.IntN(2) == 0)
		}
	case n < 55 && g.down:
		g.down, g.life = false, g.life+1
		for _, p := range m.pickers {
			m.follow(p, g)
		}
	case n == 55 && len(m.pickers) == 1:
		g.stuck = true
		if m.r.IntN(2) == 0 {
			p.state.Gone(g.name, false)
		}
	case n < 58 && g.stuck:
		g.stuck = false
		for _, late := range g.later {
			late()
		}
		g.later = nil
	case n == 58: // the connection broke
		m.follow(p, g)
	}
	return ""
}

// call is one of a client: a step of its sequence, or its START.
func (m *fakeMesh) call(p *fakePicker) (fault string) {
	id := m.r.IntN(len(m.clients))
	goesOn := m.clients[id]
	c := &Call{Model: "m", Sequence: strconv.Itoa(id + 1), Start: goesOn == 0 || m.r.IntN(10) == 0, End: m.r.IntN(12) == 0}
	asked, end := *c, c.End
	placement, to := infer.Placement{}, m.gateways[m.r.IntN(3)]
	if m.r.IntN(10) > 0 { // else the picker is away
		pick := p.state.Pick(m.now, c, m.r.Uint64())
		if pick.Refused {
			m.clients[id] = 0
			return ""
		}
		if m.r.IntN(10) > 0 { // else it was slow
			placement = pick.Placement
			for _, g := range m.gateways {
				if g.name == pick.Gateway && m.r.IntN(15) > 0 { // else Envoy finds it unhealthy
					to = g
				}
			}
		}
	}
	if to.down {
		m.clients[id] = 0
		return ""
	}
	m.serial++
	serial := m.serial
	if to.stuck { // the client gives up, and the gateway does it later
		to.later = append(to.later, func() { m.serve(to, &asked, &placement, serial) })
		m.clients[id] = 0
		return ""
	}
	got, ok := m.serve(to, &asked, &placement, serial)
	switch {
	case !ok:
		m.clients[id] = 0
	case asked.Start:
		m.clients[id] = serial
	case got != goesOn:
		return fmt.Sprintf("a step of the sequence that START %d began was answered by that of START %d, at %s: %+v", goesOn, got, to.name, placement)
	default:
		m.answers++
	}
	if ok && end {
		m.clients[id] = 0
	}
	return ""
}

// serve is what a gateway does by the rule of gateway/schedule/sequence.
func (m *fakeMesh) serve(g *fakeGateway, c *Call, p *infer.Placement, serial uint64) (got uint64, ok bool) {
	life, lives := g.live[p.Key]
	switch {
	case p.Key == "":
		return 0, false
	case c.Start:
		life = [2]uint64{max(p.Epoch, life[0]), serial}
		g.live[p.Key] = life
		m.tellAll(g, change(g, p.Key, life[0], mesh.PlacedSequence_LIVES))
	case !lives || life[0] < p.Epoch:
		return 0, false
	}
	if c.End {
		delete(g.live, p.Key)
		m.tellAll(g, change(g, p.Key, life[0], mesh.PlacedSequence_ENDED))
	}
	return life[1], true
}

func (m *fakeMesh) tellAll(g *fakeGateway, what func(*State)) {
	for _, p := range m.pickers {
		p.tell(g, what)
	}
}
