package picker

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// Config says how a Server works. Zero fields take the default.
type Config struct {
	Rules Rules
	// Scope says which callers share correlation IDs; the gateways' own.
	Scope infer.SequenceScope
	// Interval is how often gateways are asked for their load; default 100 ms.
	Interval time.Duration
	// Dial makes a connection to the gRPC port of a gateway; it is closed by the Server.
	// nil: plain text, or TLS as the topology's upstream says.
	Dial func(address string) (*grpc.ClientConn, error)
}

// Deps are a Server's collaborators.
type Deps struct{ Log *slog.Logger }

// Server is the endpoint picker. New makes it, Run watches the gateways that Set names.
type Server struct {
	procv3.UnimplementedExternalProcessorServer

	cfg   Config
	log   *slog.Logger
	begun time.Time
	news  chan struct{}

	mu       sync.Mutex
	state    *State                 // mu
	topology *xds.Topology          // mu; nil: none yet
	secrets  xds.Secrets            // mu; of topology
	places   map[string]xds.Gateway // mu; by name
	routes   []xds.Route            // mu
	counts   map[Why]uint64         // mu
}

// New makes a Server that knows no gateway.
func New(cfg Config, deps Deps) *Server {
	if cfg.Interval <= 0 {
		cfg.Interval = 100 * time.Millisecond
	}
	return &Server{cfg: cfg, log: deps.Log, begun: time.Now(), news: make(chan struct{}, 1), state: NewState(cfg.Rules),
		places: map[string]xds.Gateway{}, counts: map[Why]uint64{}}
}

// Register serves the picker on r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	procv3.RegisterExternalProcessorServer(r, s)
}

// Set says which gateways there are. A topology that has no picker, or another one, leaves
// it without any, so that none is asked for its load. t and the contents of its files are
// only read.
func (s *Server) Set(t *xds.Topology, secrets xds.Secrets) {
	s.mu.Lock()
	members := make([]Member, 0, len(t.Gateways))
	s.topology, s.secrets, s.routes = t, secrets, t.Routes
	clear(s.places)
	var gateways []xds.Gateway
	if p := t.Services.Picker; p != nil && p.Address == "" { // else nobody asks here
		gateways = t.Gateways
	}
	for _, g := range gateways {
		s.places[g.Name] = g
		members = append(members, Member{Name: g.Name, Group: groupOf(g.Group), Draining: g.Draining})
	}
	s.state.Set(members)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Counts are the picks so far, by what decided.
func (s *Server) Counts() map[Why]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[Why]uint64, len(s.counts))
	for why, n := range s.counts {
		out[why] = n
	}
	return out
}

func (s *Server) now() time.Duration { return time.Since(s.begun) }

// Process answers Envoy about one call: its headers, and where they don't say enough,
// the beginning of its body.
func (s *Server) Process(stream procv3.ExternalProcessor_ProcessServer) error {
	var h head
	var c Call
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		var answer *procv3.ProcessingResponse
		switch r := m.Request.(type) {
		case *procv3.ProcessingRequest_RequestHeaders:
			h, c = readHead(r.RequestHeaders.GetHeaders().GetHeaders())
			h.caller.readFound(m.GetMetadataContext())
			if !r.RequestHeaders.GetEndOfStream() && s.wantsBody(&h, &c) {
				answer = askBody()
				break
			}
			answer = s.answer(&h, &c, false)
		case *procv3.ProcessingRequest_RequestBody:
			answer = s.body(r.RequestBody.GetBody(), &h, &c)
		default: // the filter sends nothing else
			return nil
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// body decides on a call whose body was asked for.
func (s *Server) body(b []byte, h *head, c *Call) *procv3.ProcessingResponse {
	kept := *c
	if !readBody(b, h, c) {
		*c = kept
	}
	if h.flagged { // what the caller says in headers counts
		c.Sequence, c.Start, c.End, c.Bare = kept.Sequence, kept.Start, kept.End, true
	}
	if h.keyed {
		c.Key = kept.Key
	}
	if !h.grpc || h.named {
		c.Model, c.Version = kept.Model, kept.Version
	}
	return s.answer(h, c, true)
}

// wantsBody says that a choice needs more than the headers. A stream's body never ends,
// so it is not waited for.
func (s *Server) wantsBody(h *head, c *Call) (wanted bool) {
	if !h.inference || !h.unary {
		return false
	}
	if h.grpc && !h.named {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.meantLocked(c.Model, c.Version) {
		sequence, cached := s.state.traits(t.Model, t.Version)
		h.sequence = h.sequence || sequence && !h.flagged
		if sequence && !h.flagged || cached && !sequence && !h.keyed {
			wanted = true
		}
	}
	return wanted
}

// meantLocked are those who may answer a call: the targets of its route, the one with
// the most weight first and one for each group; without a route, the model itself.
func (s *Server) meantLocked(model, version string) []xds.Target {
	var route *xds.Route
	for i := range s.routes {
		r := &s.routes[i]
		if r.Model == model && (r.Version == version || r.Version == "" && route == nil) {
			route = r
		}
	}
	if route == nil || len(route.Targets) == 0 {
		return []xds.Target{{Model: model, Version: version, Group: groupOf("")}}
	}
	targets := slices.Clone(route.Targets)
	slices.SortStableFunc(targets, func(a, b xds.Target) int { return cmp.Compare(b.Weight, a.Weight) })
	var out []xds.Target
	for _, t := range targets {
		t.Model, t.Version, t.Group = cmp.Or(t.Model, model), cmp.Or(t.Version, version), groupOf(t.Group)
		same := func(o xds.Target) bool { return o.Group == t.Group }
		if (t.Weight > 0 || len(targets) == 1) && !slices.ContainsFunc(out, same) {
			out = append(out, t)
		}
	}
	return out
}

func groupOf(name string) string { return cmp.Or(name, xds.DefaultGroup) }

// answer decides and words it for Envoy. Which of a route's groups answers, Envoy decides
// behind this: it is told one gateway of each.
func (s *Server) answer(h *head, c *Call, body bool) *procv3.ProcessingResponse {
	said := *c
	var first Pick
	var addresses []string
	stream := h.grpc && h.path == streamMethod
	if c.Sequence != "" || stream {
		c.Scope, c.Loose = h.caller.scope(s.cfg.Scope)
	}
	s.mu.Lock()
	for i, t := range s.meantLocked(c.Model, c.Version) {
		c.Model, c.Version, c.Group = t.Model, t.Version, t.Group
		pick := s.state.Pick(s.now(), c, rand.Uint64())
		if i == 0 {
			first = pick
			s.counts[pick.Why]++
		}
		if g, ok := s.places[pick.Gateway]; ok {
			addresses = append(addresses, addressOf(&g, h.grpc))
		}
		if c.Sequence != "" {
			break
		}
	}
	s.mu.Unlock()
	if first.Refused {
		return refusal(h, c, first)
	}
	if stream { // what the headers don't name belongs to the stream
		first.Placement.Stream, first.Placement.Scope = 1, c.Scope
	}
	return chosen(&said, first, strings.Join(addresses, ","), body, h)
}

// addressOf is where Envoy calls a gateway, as its endpoints have it.
func addressOf(g *xds.Gateway, grpc bool) string {
	at := g.HTTP
	if grpc {
		at = g.GRPC
	}
	return strings.TrimPrefix(at, "unix:")
}

// set overwrites a header.
func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}
