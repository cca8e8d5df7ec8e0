package xds

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestOddTopologies checks that what Validate lets through can be built, but for names
// of hosts and files, whatever stands in the fields. A fuzz test would spend its time on
// the coverage of Envoy's generated messages.
func TestOddTopologies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	built := 0
	for range 400 {
		top := oddTopology(random)
		if top.Validate() != nil {
			continue
		}
		r, err := Build(top, "z", nil)
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.Contains(line, "is not the IP address and port") && !strings.Contains(line, "was not read") {
					t.Fatalf("a valid topology can't be built: %s\n%+v", line, top)
				}
			}
			continue
		}
		if _, err := r.snapshot(); err != nil {
			t.Fatalf("a valid topology makes no snapshot: %v\n%+v", err, top)
		}
		built++
	}
	if built < 40 {
		t.Errorf("only %d of the topologies were built: the test says little", built)
	}
}

func oneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// oddTopology has mostly sane values, and one odd one in about a dozen.
func oddTopology(r *rand.Rand) *Topology {
	odd := func(sane ...string) string {
		if r.IntN(40) == 0 {
			return oneOf(r, "", "\x00", "a/b", "ä ö", strings.Repeat("x", 300), "..", "%", "\xff", `\1`, "a\nb", "^$")
		}
		return oneOf(r, sane...)
	}
	number := func() int {
		if r.IntN(40) == 0 {
			return oneOf(r, -1, math.MaxInt32, math.MaxInt, math.MinInt)
		}
		return r.IntN(5)
	}
	share := func() float64 {
		if r.IntN(20) == 0 {
			return oneOf(r, 0, -1, 101, math.NaN(), math.Inf(1), 1e-9)
		}
		return float64(1 + r.IntN(99))
	}
	t := &Topology{}
	for range r.IntN(3) {
		g := Gateway{Name: odd("a", "b", "c", "d"), Group: odd("", "g"), HTTP: odd("127.0.0.1:1", "unix:/s", "[::1]:2"), GRPC: odd("127.0.0.1:3", ""),
			Zone: odd("", "z"), Weight: number(), Ready: true}
		for range r.IntN(3) {
			g.Models = append(g.Models, Model{Name: odd("m", "n"), Version: odd("1", "2"), Ready: true, Stateful: r.IntN(4) == 0})
		}
		t.Gateways = append(t.Gateways, g)
	}
	for range r.IntN(3) {
		route := Route{Model: odd("m", "n", "o"), Version: odd("", "1"), Timeout: time.Duration(number()) * time.Second}
		for range 1 + r.IntN(3) {
			route.Targets = append(route.Targets, Target{Model: odd("", "m"), Version: odd("", "2"), Group: odd("", "g"), Weight: number()})
		}
		if r.IntN(3) == 0 {
			route.Mirror = []Mirror{{Model: odd("", "n"), Group: odd("", "g"), Percent: share()}}
		}
		t.Routes = append(t.Routes, route)
	}
	if r.IntN(3) == 0 {
		percent := share()
		t.Services = Services{Authz: &Service{}, RateLimit: &Service{Address: odd("", "h:1"), Timeout: time.Duration(number())},
			Picker: &Service{Address: odd("", "unix:/p")}, Collector: &Collector{Address: odd("c:1", "127.0.0.1:2"), Percent: &percent}}
	}
	if r.IntN(3) == 0 {
		t.Upstream = Upstream{Balance: odd("", BalanceHash, BalanceLoad), Zones: odd("", "spread"), RetryBudget: share(), Retries: number(),
			ErrorsInRow: number(), MaxRequests: number(), MaxStreams: number(), HealthInterval: time.Duration(number()), IdleTimeout: time.Duration(number()) * time.Second,
			BufferBytes: oneOf(r, 0, 65536, 1<<30, int64(number()))}
	}
	if r.IntN(3) == 0 {
		t.Listeners = []Listener{{Name: odd("", "l"), Address: odd("", "127.0.0.1"), Port: number(), Unix: odd("", "/l"), TrustedHops: number()}}
	}
	return t
}
