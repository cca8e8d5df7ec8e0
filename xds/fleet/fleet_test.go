package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/xds"
)

func TestMain(m *testing.M) { leak.Main(m) }

// gateway is one that says what a test wants.
type gateway struct {
	*httptest.Server

	mu     sync.Mutex
	ready  bool
	soon   bool // not ready only while workers are started again
	index  int  // status of the repository index
	models []xds.Model
	asked  chan<- struct{} // if set, told of each call
	token  string          // that callers must show; "": none
	secret bool            // nobody may read configurations
	config int             // how often a model's configuration was asked for
}

func newGateway(t *testing.T, models ...xds.Model) *gateway {
	t.Helper()
	g := &gateway{ready: true, index: http.StatusOK, models: models}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) address() string { return strings.TrimPrefix(g.URL, "http://") }

func (g *gateway) set(change func(*gateway)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

// ServeHTTP answers as a gateway does.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case g.asked <- struct{}{}:
	default:
	}
	if g.token != "" && r.Header.Get("Authorization") != "Bearer "+g.token && r.URL.Path != "/v2/health/ready" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/v2/health/ready":
		switch degraded := g.soon && r.Header.Get("X-Sluice-Degraded") == "accept"; {
		case degraded:
			w.Header().Set("X-Envoy-Degraded", "true")
		case !g.ready:
			w.WriteHeader(http.StatusBadRequest)
		}
	case r.URL.Path == "/v2/repository/index" && r.Method == http.MethodPost:
		w.WriteHeader(g.index)
		entries := []map[string]string{}
		for _, m := range g.models {
			state := "READY"
			if !m.Ready {
				state = "UNAVAILABLE"
			}
			entries = append(entries, map[string]string{"name": m.Name, "version": m.Version, "state": state})
		}
		_ = json.NewEncoder(w).Encode(entries)
	case strings.HasSuffix(r.URL.Path, "/config"):
		g.config++
		if g.secret {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if strings.Contains(r.URL.Path, "speech") {
			_, _ = fmt.Fprint(w, `{"name": "speech", "sequence_batching": {}}`)
			return
		}
		_, _ = fmt.Fprint(w, `{"name": "m", "dynamic_batching": {}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// sink is a control plane that keeps what it was told.
type sink struct {
	mu    sync.Mutex
	first []string // what it was told first
	bad   string   // the name of a gateway whose topologies it refuses
	last  *xds.Topology
	files xds.Secrets
	count int
}

func (s *sink) Set(t *xds.Topology, files xds.Secrets) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad != "" && slices.ContainsFunc(t.Gateways, func(g xds.Gateway) bool { return g.Name == s.bad }) {
		return errors.New("a bad gateway")
	}
	s.last, s.files = t, files
	s.count++
	if s.count == 1 {
		s.first = s.gatewaysLocked()
	}
	return nil
}

func (s *sink) gateways() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gatewaysLocked()
}

func (s *sink) gatewaysLocked() (out []string) {
	if s.last == nil {
		return nil
	}
	for _, g := range s.last.Gateways {
		var models []string
		for _, m := range g.Models {
			text := m.Name + "/" + m.Version
			if !m.Ready {
				text += "-"
			}
			if m.Stateful {
				text += "*"
			}
			models = append(models, text)
		}
		known := ""
		if g.Models == nil {
			known = "?"
		}
		ready := fmt.Sprint(g.Ready)
		if g.Degraded {
			ready += " degraded"
		}
		out = append(out, fmt.Sprintf("%s %s %s%s", g.Name, ready, strings.Join(models, ","), known))
	}
	return out
}

func begin(t *testing.T, cfg Config, deps Deps) *sink {
	t.Helper()
	s := &sink{}
	deps.Server, deps.Log = s, slog.New(slog.DiscardHandler)
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Millisecond
	}
	cfg.Timeout = 5 * time.Second
	f, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *sink) wants(t *testing.T, want ...string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !slices.Equal(s.gateways(), want); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the control plane has %q, want %q", s.gateways(), want)
		}
	}
}

func base(gs ...xds.Gateway) xds.Topology { return xds.Topology{Gateways: gs} }

// TestStates follows a gateway: its readiness, its models, and that it says no more.
func TestStates(t *testing.T) {
	g := newGateway(t, xds.Model{Name: "speech", Version: "1", Ready: true}, xds.Model{Name: "m", Version: "2"})
	s := begin(t, Config{Base: base(xds.Gateway{Name: "a", HTTP: g.address()})}, Deps{})
	s.wants(t, "a true m/2-,speech/1*")
	g.set(func(g *gateway) { g.models[1].Ready = true })
	s.wants(t, "a true m/2,speech/1*")
	g.set(func(g *gateway) { g.ready = false })
	s.wants(t, "a false m/2,speech/1*")
	g.set(func(g *gateway) { g.soon = true })
	s.wants(t, "a false degraded m/2,speech/1*")
	g.set(func(g *gateway) { g.soon = false })
	s.wants(t, "a false m/2,speech/1*")
	g.set(func(g *gateway) { g.ready, g.index = true, http.StatusForbidden })
	s.wants(t, "a true ?")
	g.set(func(g *gateway) { g.index = http.StatusOK })
	s.wants(t, "a true m/2,speech/1*")
	asked := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.config
	}
	if n := asked(); n > 3 {
		t.Errorf("a model's configuration was asked for %d times; it does not change while the model stays", n)
	}
	g.Close()
	s.wants(t, "a false ?")
}

// swap gives a file another text at once.
func swap(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".part", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".part", file); err != nil {
		t.Fatal(err)
	}
}

// TestFile changes the topology under a Fleet: gateways join and leave, a bad file
// changes nothing.
func TestFile(t *testing.T) {
	a, b := newGateway(t), newGateway(t)
	file := filepath.Join(t.TempDir(), "topology.yaml")
	write := func(text string) { swap(t, file, text) }
	entry := func(name string, g *gateway) string {
		return fmt.Sprintf("- {name: %s, http: %q}\n", name, g.address())
	}
	write("gateways:\n" + entry("a", a))
	s := begin(t, Config{File: file, Base: base(xds.Gateway{Name: "self", HTTP: "127.0.0.1:1"})}, Deps{Sources: map[string]Source{"self": still{}}})
	s.wants(t, "a true ", "self true ?")
	write("gateways:\n" + entry("a", a) + entry("b", b))
	s.wants(t, "a true ", "b true ", "self true ?")
	write("gatways:\n" + entry("b", b))
	write("gateways:\n" + entry("b", b) + "- {name: self, zone: east}\n")
	s.wants(t, "b true ", "self true ?")
	s.mu.Lock()
	defer s.mu.Unlock()
	if self := s.last.Gateways[1]; self.HTTP != "127.0.0.1:1" || self.Zone != "east" {
		t.Errorf("self is %+v; the file has its zone, the gateway its address", self)
	}
}

// still is a gateway that is ready and stays so.
type still struct{}

func (still) Watch(ctx context.Context, report func(State)) {
	report(State{Ready: true})
	<-ctx.Done()
}

// TestQuiet checks that nothing is told when nothing changes.
func TestQuiet(t *testing.T) {
	g := newGateway(t)
	s := begin(t, Config{Base: base(xds.Gateway{Name: "a", HTTP: g.address()})}, Deps{})
	s.wants(t, "a true ")
	s.mu.Lock()
	before := s.count
	s.mu.Unlock()
	asked := make(chan struct{}, 64)
	g.set(func(g *gateway) { g.asked = asked })
	for range 10 {
		<-asked
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count != before {
		t.Errorf("told %d times more without a change", s.count-before)
	}
}

// TestToken reads the index of a gateway that wants to know who asks, and follows the
// file; a configuration that is refused may be one with sequences, until it is not.
func TestToken(t *testing.T) {
	g := newGateway(t, xds.Model{Name: "m", Version: "1", Ready: true})
	g.token = "first"
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	b := base(xds.Gateway{Name: "a", HTTP: g.address()})
	b.Upstream.TokenFile = file
	s := begin(t, Config{Base: b}, Deps{})
	s.wants(t, "a true m/1")
	g.set(func(g *gateway) { g.token, g.secret = "second", true })
	s.wants(t, "a true ?")
	write("second\n")
	s.wants(t, "a true m/1*")
	g.set(func(g *gateway) { g.secret = false })
	s.wants(t, "a true m/1")
}

// TestFirst starts a control plane beside gateways that serve: the first that Envoys are
// told is not that nobody is ready.
func TestFirst(t *testing.T) {
	a, b := newGateway(t), newGateway(t)
	s := begin(t, Config{Base: base(xds.Gateway{Name: "a", HTTP: a.address()}, xds.Gateway{Name: "b", HTTP: b.address()})}, Deps{})
	s.wants(t, "a true ", "b true ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.first, s.gatewaysLocked()) {
		t.Errorf("told %q first", s.first)
	}
}

// TestRefused gives the control plane a topology that it refuses: the one before stays,
// and follows its gateways.
func TestRefused(t *testing.T) {
	a := newGateway(t)
	file := filepath.Join(t.TempDir(), "topology.yaml")
	write := func(text string) { swap(t, file, text) }
	one := fmt.Sprintf("gateways:\n- {name: a, http: %q}\n", a.address())
	write(one)
	s := begin(t, Config{File: file}, Deps{})
	s.wants(t, "a true ")
	s.mu.Lock()
	s.bad = "b"
	s.mu.Unlock()
	write("gateways:\n- {name: b, http: '127.0.0.1:1'}\n")
	asked := make(chan struct{}, 64)
	a.set(func(g *gateway) { g.asked = asked })
	for range 30 { // rounds in which the bad file is seen
		<-asked
	}
	a.set(func(g *gateway) { g.ready = false })
	s.wants(t, "a false ")
	write(one + "- {name: c, http: '127.0.0.1:1'}\n")
	s.wants(t, "a false ", "c false ?")
}

// TestSilent keeps what it told last while no gateway answers in time, and says who is
// silent once another one answers.
func TestSilent(t *testing.T) {
	f := &Fleet{states: map[string]State{}}
	a, b := xds.Gateway{Name: "a", HTTP: "10.0.0.1:1"}, xds.Gateway{Name: "b", HTTP: "10.0.0.2:1"}
	ready := State{Ready: true, Models: []xds.Model{{Name: "m", Version: "1", Ready: true}}}
	f.states[f.key(&a)], f.states[f.key(&b)] = ready, ready
	told := base(a, b)
	f.fill(&told, nil)
	f.states[f.key(&a)], f.states[f.key(&b)] = State{Silent: true}, State{Silent: true}
	now := base(a, b)
	if f.fill(&now, &told); !same(&told, &now) {
		t.Errorf("nobody answers: %+v", now.Gateways)
	}
	f.states[f.key(&b)] = State{}
	now = base(a, b)
	if f.fill(&now, &told); now.Gateways[0].Ready || now.Gateways[1].Ready {
		t.Errorf("one is gone: %+v", now.Gateways)
	}
}

// TestHealthService tells of a change long before the interval has passed.
func TestHealthService(t *testing.T) {
	g := newGateway(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, service)
	service.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	s := begin(t, Config{Interval: time.Hour, Base: base(xds.Gateway{Name: "a", HTTP: g.address(), GRPC: l.Addr().String()})}, Deps{})
	s.wants(t, "a true ")
	g.set(func(g *gateway) { g.ready = false })
	service.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	s.wants(t, "a false ")
}

// TestGRPCAlone asks a gateway that has no HTTP port.
func TestGRPCAlone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, service)
	service.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s := begin(t, Config{Base: base(xds.Gateway{Name: "a", GRPC: l.Addr().String()})}, Deps{})
	s.wants(t, "a true ?")
	service.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	s.wants(t, "a false ?")
	service.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	s.wants(t, "a true ?")
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	s.wants(t, "a false ?")
}

// TestNames makes a gateway for each address of a name.
func TestNames(t *testing.T) {
	news := make(chan struct{}, 8)
	r := newResolver(5*time.Second, func() { news <- struct{}{} })
	var running sync.WaitGroup
	look := func() ([]xds.Gateway, bool) {
		return r.expand(t.Context(), &running, []xds.Gateway{{Name: "a", HTTP: "localhost:8000", GRPC: "localhost:8001"}, {Name: "b", HTTP: "unix:/run/b"},
			{Name: "c", HTTP: "no-such-name.invalid:1"}}, func(string) bool { return false }, slog.New(slog.DiscardHandler))
	}
	if got, found := look(); found || len(got) != 1 {
		t.Errorf("before anything was looked up: %+v, all looked up %v", got, found)
	}
	running.Wait() // for both names
	got, found := look()
	running.Wait()
	if len(got) < 2 || got[len(got)-1].Name != "b" || !found || len(news) != 2 {
		t.Fatalf("got %+v, all looked up %v, told of news %d times", got, found, len(news))
	}
	for _, g := range got[:len(got)-1] {
		host, _, err := net.SplitHostPort(g.HTTP)
		if err != nil || !net.ParseIP(host).IsLoopback() || !strings.HasSuffix(g.GRPC, ":8001") || g.Name != "a/"+host {
			t.Errorf("got %+v", g)
		}
	}
}

func TestBadFiles(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	bad := write("bad.pem", "no certificate")
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", "gateways:\n- {name: a, htp: x}", "line 2: field htp not found"},
		{"no address", "gateways: [{name: a}]", `gateway "a" has neither http nor grpc`},
		{"twice", "gateways: [{name: a, http: 'h:1'}, {name: a, http: 'h:2'}]", `gateway "a" is there twice`},
		{"weights", "routes: [{model: m, targets: [{weight: 0}, {weight: 0}]}]", "all weights are 0"},
		{"torn sequences", "routes: [{model: m, stateful: true, targets: [{weight: 1}, {version: '2', weight: 1}]}]", "would tear sequences apart"},
		{"certificate", "listeners: [{port: 1, tls: {cert: " + bad + ", key: " + bad + "}}]", "failed to find any PEM data"},
		{"slash", "gateways: [{name: a, http: 'h:1', group: a/b}]", "has a slash"},
		{"buffers", "{services: {picker: {}}, upstream: {buffer_bytes: 100000000}}", "with a picker"},
		{"token", "upstream: {token_file: " + write("token", "two\nlines") + "}", "is not a line with a token"},
		{"missing", "listeners: [{port: 1, tls: {cert: /nowhere, key: /nowhere}}]", "no such file"},
	} {
		file := write("topology.yaml", c.text)
		_, err := New(Config{File: file}, Deps{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := New(Config{File: filepath.Join(folder, "nowhere")}, Deps{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
