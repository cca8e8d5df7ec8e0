package admission

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// What a caller announces is not what all others of a rule pay for: at most a burst is
// taken on its word, and what never came goes back.
func TestAnnouncedBytesComeBack(t *testing.T) {
	now := int64(time.Hour)
	l := limits(t, "rules: [{name: shared, bytes: {rate: 1KB/s, burst: 10KB}}]", func() int64 { return now })
	liar := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: math.MaxInt64}
	if err := l.Open(t.Context(), liar); err != nil {
		t.Fatal(err)
	}
	other := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: 1000}
	err := l.Open(t.Context(), other)
	if wait := infer.RetryOf(err); err == nil || wait > time.Second {
		t.Errorf("while it is sent: %v, want a refusal for a second", err)
	}
	l.Close(other, &infer.End{})
	l.Close(liar, &infer.End{Received: 100})
	other = &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: 9900}
	if err := l.Open(t.Context(), other); err != nil {
		t.Errorf("after it sent 100 bytes: %v", err)
	}
	l.Close(other, &infer.End{Received: 9900})
}

// A body larger than the burst is paid for in full once it has come.
func TestLargeBodiesArePaid(t *testing.T) {
	now := int64(time.Hour)
	l := limits(t, "rules: [{name: shared, bytes: {rate: 1KB/s, burst: 10KB}}]", func() int64 { return now })
	env := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: 50_000}
	if err := l.Open(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	l.Close(env, &infer.End{Received: 50_000})
	env.BodySize = 1000
	err := l.Open(t.Context(), env)
	if wait := infer.RetryOf(err); wait != 41*time.Second {
		t.Errorf("%v, want a refusal for 41 s", err)
	}
	l.Close(env, &infer.End{})
}

// A body of unknown length that turns out wrong, so that no request came of it, is paid
// for too.
func TestWrongBodiesArePaid(t *testing.T) {
	now := int64(time.Hour)
	l := limits(t, "rules: [{name: shared, bytes: {rate: 1KB/s, burst: 10KB}}]", func() int64 { return now })
	passed := 0
	for range 20 {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: -1}
		if l.Open(t.Context(), env) == nil {
			passed++
		}
		l.Close(env, &infer.End{Received: 5000})
	}
	if passed != 2 {
		t.Errorf("%d bodies of 5000 bytes passed, want 2", passed)
	}
}

// Names of models that are not there, or longer than any, share one meter: they take
// neither room nor memory from those that are.
func TestUnknownModelsShare(t *testing.T) {
	now := int64(time.Hour)
	rules, err := Parse([]byte("rules: [{name: r, each: principal+model, requests: 3/h}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range []func(string) bool{nil, func(model string) bool { return model == "m" }} {
		l, err := start(t.Context(), rules, Deps{Now: func() int64 { return now }, Known: known})
		if err != nil {
			t.Fatal(err)
		}
		call := func(model string) error {
			env := &infer.Envelope{Action: infer.ActionInference, Model: model, Principal: &infer.Principal{Name: "p"}}
			err := l.Open(t.Context(), env)
			l.Close(env, &infer.End{})
			return err
		}
		refused := 0
		for i := range 100 {
			if call(fmt.Sprint(i, strings.Repeat("x", 300))) != nil {
				refused++
			}
		}
		if refused != 97 || l.table.size() != 1 {
			t.Errorf("%d of 100 were refused, with %d meters; want 97 and 1", refused, l.table.size())
		}
		if err := call("m"); err != nil {
			t.Errorf("one that is there: %v", err)
		}
	}
}

// A call may meet any number of limits; what those that only watch would have refused
// never keeps what another one held.
func TestManyShadows(t *testing.T) {
	var file strings.Builder
	file.WriteString("rules:\n")
	for i := range 3 {
		fmt.Fprintf(&file, "- {name: held%d, concurrency: 1000}\n", i)
	}
	for i := range 70 {
		fmt.Fprintf(&file, "- {name: watched%d, shadow: true, requests: 1/h}\n", i)
	}
	file.WriteString("- {name: last, requests: 1/h}\n")
	l := limits(t, file.String(), nil)
	for i := range 4 {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m"}
		if err := l.Open(t.Context(), env); (err == nil) != (i == 0) {
			t.Errorf("call %d: %v", i, err)
		}
		l.Close(env, &infer.End{})
	}
	for key, m := range l.table.meters {
		if n := m.used.Load(); n != 0 {
			t.Errorf("%s holds %d of nothing", key.rule, n)
		}
	}
}

// Who has an IPv6 network has 2^64 addresses: a network is one subject. An IPv4 address
// is the same over both kinds of sockets.
func TestNetworksAreOneSubject(t *testing.T) {
	l := limits(t, "rules: [{name: r, each: remote, requests: 1/h}]", nil)
	for _, c := range []struct {
		from string
		want bool
	}{{"2001:db8::1", true}, {"2001:db8::2", false}, {"2001:db8:0:1::1", true}, {"192.0.2.1", true}, {"::ffff:192.0.2.1", false}, {"192.0.2.2", true},
		{"fe80::1%eth0", true}, {"fe80::2%eth0", false}} {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Remote: netip.AddrPortFrom(netip.MustParseAddr(c.from), 1)}
		err := l.Open(t.Context(), env)
		if got := err == nil; got != c.want {
			t.Errorf("%s: %v, want taken %v", c.from, err, c.want)
		}
		l.Close(env, &infer.End{})
	}
}

// Callers without a name who fall under one rule's remote addresses don't all meet in one
// shard, of which each has room for a part.
func TestAddressesSpread(t *testing.T) {
	l := limits(t, "track: 6400\nrules: [{name: r, each: remote, requests: 10/s}]", nil)
	for i := range 3200 {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)}
		if err := l.Open(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		l.Close(env, &infer.End{})
	}
	kept := 0
	g := l.generation.Load()
	for i := range g.shards {
		kept += len(g.shards[i].accounts)
	}
	if kept < 3000 {
		t.Errorf("%d accounts of 3200 callers are kept, with room for 6400", kept)
	}
}

// Whom Envoy knows by a group alone falls under the group's rules, and leaves callers who
// showed nothing alone.
func TestGroupWithoutAName(t *testing.T) {
	l := limits(t, "rules: [{name: g, groups: bad, requests: 1/h}, {name: a, principals: anonymous, requests: 2/h}]", nil)
	ask := func(groups ...string) bool {
		q := Query{Model: "m", Action: infer.ActionInference, Hits: 5}
		if groups != nil {
			q.Principal = &infer.Principal{Groups: groups}
		}
		return l.Hit(t.Context(), q).Rule == "g"
	}
	if !ask("bad") {
		t.Error("a group's rule does not count for who is known by it alone")
	}
	if ask() {
		t.Error("a group's rule counts for who showed nothing")
	}
}

// A question of no hits looks, and spends nothing.
func TestNoHitsSpendNothing(t *testing.T) {
	l := limits(t, "rules: [{name: e, at: envoy, requests: 2/h}]", nil)
	for i, c := range []struct {
		hits int64
		over bool
	}{{0, false}, {0, false}, {0, false}, {1, false}, {0, false}, {1, false}, {0, true}, {1, true}} {
		if v := l.Hit(t.Context(), Query{Model: "m", Action: infer.ActionInference, Hits: c.hits}); v.Over != c.over {
			t.Errorf("question %d, of %d hits: %+v, want over %v", i, c.hits, v, c.over)
		}
	}
}

// Compute time of a batch whose caller left before its end is his too.
func TestAbandonedComputeIsPaid(t *testing.T) {
	now := int64(time.Hour)
	l := limits(t, "rules: [{name: gpu, compute: 100ms/s}]", func() int64 { return now })
	env := &infer.Envelope{Action: infer.ActionInference, Model: "m"}
	if err := l.Open(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	l.Close(env, &infer.End{Request: &infer.Request{Rows: 1, Times: infer.Times{QueueStart: 1, Abandoned: int64(2 * time.Second)}}})
	err := l.Open(t.Context(), env)
	if wait := infer.RetryOf(err); wait.Round(time.Second) != 19*time.Second {
		t.Errorf("%v, want a refusal for 19 s", err)
	}
	l.Close(env, &infer.End{})
}
