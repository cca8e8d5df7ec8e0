package xds

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// example is one topology with the secrets it names and the zone of the Envoy.
type example struct {
	topology *Topology
	zone     string
	secrets  Secrets
}

func ready(name, http, grpc string, models ...Model) Gateway {
	return Gateway{Name: name, HTTP: http, GRPC: grpc, Ready: true, Models: models}
}

func model(name, version string) Model { return Model{Name: name, Version: version, Ready: true} }

// examples are topologies whose resources lie in testdata/golden.
func examples() map[string]example {
	percent := 5.0
	spread := []Gateway{ready("a", "10.0.0.1:8000", "10.0.0.1:8001", model("m", "1"), model("m", "2")),
		ready("b", "10.0.0.2:8000", "10.0.0.2:8001", model("m", "1"), model("m", "2"), model("rare", "1")),
		ready("new", "10.0.0.3:8000", "10.0.0.3:8001", model("m", "3"))}
	spread[0].Zone, spread[1].Zone, spread[1].Weight, spread[2].Group = "east", "west", 3, "canary"
	seq := Model{Name: "speech", Version: "1", Ready: true, Stateful: true}
	return map[string]example{
		"one": {topology: &Topology{Gateways: []Gateway{ready("self", "127.0.0.1:8000", "127.0.0.1:8001", model("m", "1"))}}},
		"routes": {zone: "west", topology: &Topology{Gateways: spread, Routes: []Route{
			{Model: "m", Targets: []Target{{Weight: 80}, {Version: "2", Weight: 15}, {Group: "canary", Weight: 5}},
				Mirror: []Mirror{{Group: "canary", Percent: 10}, {Model: "n", Version: "7", Percent: 0.5}}, Timeout: 2 * time.Second},
			{Model: "m", Version: "1", Targets: []Target{{Version: "2"}}},
			{Model: "odd name+.", Targets: []Target{{Model: "m", Version: "2"}}}},
			Upstream: Upstream{Zones: "prefer"}}},
		"services": {topology: &Topology{Gateways: []Gateway{ready("self", "unix:/run/http", "unix:/run/grpc", seq)},
			Listeners: []Listener{{Unix: "/run/mesh", AccessLog: "none"}},
			Services: Services{Authz: &Service{}, RateLimit: &Service{Address: "limits:9000", Timeout: time.Second, Closed: true},
				Picker: &Service{Address: "unix:/run/picker"}, Collector: &Collector{Address: "127.0.0.1:4317", Percent: &percent}},
			Upstream: Upstream{HTTP2: true, Balance: BalanceLoad}}},
		"tls": {topology: &Topology{Gateways: []Gateway{ready("a", "[::1]:8000", "[::1]:8001"), {Name: "b", GRPC: "127.0.0.1:1", Draining: true}},
			Listeners: []Listener{{Port: 443, TLS: &ServerTLS{Cert: "c", Key: "k", ClientCA: "r", Optional: true}, AccessLog: "/dev/null"}},
			Upstream:  Upstream{TLS: &ClientTLS{CA: "r", Cert: "c", Key: "k", Name: "gateway"}, Balance: BalanceHash, NoRetries: true, Zones: "spread"}},
			secrets: Secrets{"c": []byte("certificate"), "k": []byte("key"), "r": []byte("roots")}},
	}
}

// TestGolden compares the resources of the examples with those in testdata/golden;
// -update writes them.
func TestGolden(t *testing.T) {
	for name, e := range examples() {
		t.Run(name, func(t *testing.T) {
			if err := e.topology.Validate(); err != nil {
				t.Fatal(err)
			}
			r, err := Build(e.topology, e.zone, e.secrets)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.snapshot(); err != nil {
				t.Error(err)
			}
			got := readable(t, r)
			file := filepath.Join("testdata", "golden", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the resources differ from %s (-update writes them): got\n%s", file, got)
			}
		})
	}
}

// readable is r as JSON, sorted.
func readable(t *testing.T, r *Resources) []byte {
	t.Helper()
	tree := map[string]map[string]any{}
	for i, kind := range r.kinds() {
		of := map[string]any{}
		for name, m := range kind {
			data, err := protojson.Marshal(m.(proto.Message))
			if err != nil {
				t.Fatal(err)
			}
			var v any
			if err := json.Unmarshal(data, &v); err != nil {
				t.Fatal(err)
			}
			of[name] = v
		}
		tree[[]string{"1 clusters", "2 endpoints", "3 secrets", "4 routes", "5 listeners"}[i]] = of
	}
	out, err := json.MarshalIndent(tree, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

// TestBuildIsPure builds twice and compares bytes and versions, and checks that a change
// changes the version of its kind alone.
func TestBuildIsPure(t *testing.T) {
	build := func(change func(*Topology)) *Resources {
		e := examples()["routes"]
		change(e.topology)
		r, err := Build(e.topology, e.zone, e.secrets)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	versions := func(r *Resources) (all []string) {
		for _, kind := range r.kinds() {
			v, err := version(kind)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, v)
		}
		return all
	}
	base := versions(build(func(*Topology) {}))
	if again := versions(build(func(*Topology) {})); !slices.Equal(base, again) {
		t.Errorf("two builds of one topology: %v and %v", base, again)
	}
	for _, c := range []struct {
		name   string
		change func(*Topology)
		kind   int // of which the version changes
	}{
		{"weight of a gateway", func(t *Topology) { t.Gateways[0].Weight = 9 }, 1},
		{"drained", func(t *Topology) { t.Gateways[0].Draining = true }, 1},
		{"weight of a target", func(t *Topology) { t.Routes[0].Targets[0].Weight = 9 }, 3},
		{"access log", func(t *Topology) { t.Listeners = []Listener{{Port: DefaultPort, AccessLog: "none"}} }, 4},
		{"circuit breaker", func(t *Topology) { t.Upstream.MaxRequests = 9 }, 0},
	} {
		got := versions(build(c.change))
		for kind := range got {
			// a drained gateway is no longer asked what it has
			if changed := got[kind] != base[kind]; changed != (kind == c.kind) && c.name != "drained" {
				t.Errorf("%s: the version of kind %d changed: %v", c.name, kind, changed)
			}
		}
		if got[c.kind] == base[c.kind] {
			t.Errorf("%s: the version of kind %d stayed", c.name, c.kind)
		}
	}
}

// TestHealth says what Envoy is told of gateways in each state.
func TestHealth(t *testing.T) {
	top := &Topology{Gateways: []Gateway{ready("a", "127.0.0.1:1", ""), {Name: "b", HTTP: "127.0.0.1:2"},
		{Name: "c", HTTP: "127.0.0.1:3", Ready: true, Draining: true}, {Name: "d", HTTP: "127.0.0.1:4", Degraded: true},
		{Name: "e", HTTP: "127.0.0.1:5", Degraded: true, Draining: true}}}
	r, err := Build(top, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range r.Endpoints["http/default"].(*endpointv3.ClusterLoadAssignment).Endpoints {
		for _, e := range l.LbEndpoints {
			got = append(got, e.GetEndpoint().Hostname+" "+e.HealthStatus.String())
		}
	}
	if want := []string{"a HEALTHY", "b UNHEALTHY", "c DRAINING", "d DEGRADED", "e DRAINING"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := len(r.Endpoints["grpc/default"].(*endpointv3.ClusterLoadAssignment).Endpoints); n != 0 {
		t.Errorf("%d endpoints over gRPC, want none", n)
	}
}

// TestNoRetriesForSequences walks all routes of a fleet with a model that has sequences.
func TestNoRetriesForSequences(t *testing.T) {
	speech := Model{Name: "speech", Version: "1", Ready: true, Stateful: true}
	top := &Topology{Gateways: []Gateway{ready("a", "127.0.0.1:1", "127.0.0.1:2", speech, model("m", "1")), ready("b", "127.0.0.1:3", "127.0.0.1:4", model("m", "1"))},
		Routes: []Route{{Model: "vad", Targets: []Target{{Model: "speech"}}}, {Model: "own", Stateful: true, Targets: []Target{{Model: "m"}}},
			{Model: "plain", Targets: []Target{{Model: "m"}}}}}
	r, err := Build(top, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	retried := map[string]bool{}
	for _, route := range r.Routes[RouteTable].(*routev3.RouteConfiguration).VirtualHosts[0].Routes {
		retried[route.Name] = route.GetRoute().GetRetryPolicy() != nil
	}
	for name, want := range map[string]bool{"http default vad/ speech/": false, "grpc default vad/ speech/": false, "http default own/ m/": false,
		"http default plain/ m/": true, "grpc default plain/ m/": true, "http default speech/": false, "http default speech/1": false,
		"grpc default": false, "grpc default stream": false, "grpc default named": true, "http default": true} {
		if got, ok := retried[name]; !ok || got != want {
			t.Errorf("route %q: there %v, retried %v; want retried %v; routes %v", name, ok, got, want, slices.Sorted(maps.Keys(retried)))
		}
	}
}

// TestStreamsHaveNoBound looks at every route that a stream can take: the first one for
// its model, or for calls that name none.
func TestStreamsHaveNoBound(t *testing.T) {
	r, err := Build(examples()["routes"].topology, "west", nil)
	if err != nil {
		t.Fatal(err)
	}
	table, ok := r.Routes[RouteTable].(*routev3.RouteConfiguration)
	if !ok {
		t.Fatal("there is no route table")
	}
	streams := map[string]bool{} // by the models and shares that are matched
	seen := 0
	for _, route := range table.VirtualHosts[0].Routes {
		m := route.GetMatch()
		if m.GetGrpc() == nil {
			continue
		}
		key := ""
		for _, h := range m.GetHeaders() {
			key += h.String()
		}
		key += m.GetRuntimeFraction().String()
		a := route.GetRoute()
		if m.GetPath() != "" {
			streams[key] = true
			seen++
			if a.RetryPolicy != nil || a.GetTimeout().AsDuration() != 0 || a.MaxStreamDuration != nil || a.GetIdleTimeout() == nil {
				t.Errorf("the route %q for streams repeats or ends them: %v", route.Name, a)
			}
		} else if !streams[key] {
			t.Errorf("a stream takes the route %q", route.Name)
		}
	}
	if seen < 5 {
		t.Errorf("%d routes for streams", seen)
	}
}

// TestModelClusters says when a model has clusters of its own.
func TestModelClusters(t *testing.T) {
	a, b := ready("a", "127.0.0.1:1", "", model("m", "1"), model("only", "2")), ready("b", "127.0.0.1:2", "", model("m", "1"))
	clusters := func(gs ...Gateway) string {
		r, err := Build(&Topology{Gateways: gs}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, name := range slices.Sorted(maps.Keys(r.Clusters)) {
			if strings.HasPrefix(name, "http/") {
				out = append(out, name)
			}
		}
		return strings.Join(out, " ")
	}
	unknown, down := b, b
	unknown.Models, down.Ready = nil, false
	for _, c := range []struct {
		name string
		gs   []Gateway
		want string
	}{
		{"everywhere", []Gateway{a, a2(a)}, "http/default"},
		{"on one", []Gateway{a, b}, "http/default http/default/only http/default/only/2"},
		{"the other is not ready", []Gateway{a, down}, "http/default"},
		{"the other does not say", []Gateway{a, unknown}, "http/default"},
	} {
		if got := clusters(c.gs...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func a2(g Gateway) Gateway {
	g.Name, g.HTTP = "a2", "127.0.0.1:9"
	return g
}

func TestBuildFaults(t *testing.T) {
	for _, c := range []struct {
		name, want string
		t          *Topology
	}{
		{"a host name", "gateway:8000 is not the IP address and port of a gateway", &Topology{Gateways: []Gateway{{Name: "a", HTTP: "gateway:8000"}}}},
		{"no file", "the file c was not read", &Topology{Listeners: []Listener{{TLS: &ServerTLS{Cert: "c", Key: "k"}}}}},
	} {
		if _, err := Build(c.t, "", nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// TestManyGateways bounds what a change of a large fleet costs.
func TestManyGateways(t *testing.T) {
	top := &Topology{}
	for i := range 200 {
		g := ready("g"+time.Duration(i).String(), "10.0.0.1:8000", "10.0.0.1:8001")
		for k := range 50 {
			g.Models = append(g.Models, model("m"+time.Duration(k).String(), "1"))
		}
		top.Gateways = append(top.Gateways, g)
	}
	begin := time.Now()
	r, err := Build(top, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("%v for 200 gateways with 50 models each", took)
	}
	if n := len(r.Clusters["http/default"].(*clusterv3.Cluster).HealthChecks); n != 1 {
		t.Errorf("%d health checks", n)
	}
}
