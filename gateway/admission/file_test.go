package admission

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

func TestFaultsAreNamed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"not YAML", "rules: [", "did not find"},
		{"unknown field", "rules:\n- name: a\n  request: 1/s", "line 3: field request not found"},
		{"unknown top", "rule: []", "field rule not found"},
		{"no name", "rules: [{requests: 1/s}]", "want a name"},
		{"twice", "rules: [{name: a, requests: 1/s}, {name: a, requests: 1/s}]", "an earlier rule has this name"},
		{"nothing", "rules: [{name: a}]", "it limits nothing"},
		{"rate", "rules: [{name: a, requests: 10}]", `requests is "10", want a rate like 100/s`},
		{"words", "rules: [{name: a, requests: inf/s}]", `requests is "inf/s"`},
		{"exponent", "rules: [{name: a, requests: 1e300/s}]", `requests is "1e300/s"`},
		{"zero", "rules: [{name: a, requests: 0/s}]", "out of range"},
		{"burst", "rules: [{name: a, requests: {rate: 1/s, burst: 0}}]", `the burst of requests is "0"`},
		{"rate's field", "rules: [{name: a, requests: {rat: 1/s}}]", "field rat not found"},
		{"bytes", "rules: [{name: a, bytes: 10MBit/s}]", `bytes is "10MBit/s", want a rate like 50MiB/s`},
		{"compute", "rules: [{name: a, compute: 10/s}]", `compute is "10/s", want a rate like 500ms/s`},
		{"concurrency", "rules: [{name: a, concurrency: 1.5}]", `concurrency is "1.5", want a whole number`},
		{"each", "rules: [{name: a, each: caller, requests: 1/s}]", `each is "caller", want one of rule, principal`},
		{"at", "rules: [{name: a, at: edge, requests: 1/s}]", `at is "edge"`},
		{"held at envoy", "rules: [{name: a, at: envoy, concurrency: 1}]", "not concurrency"},
		{"action", "rules: [{name: a, actions: [infer], requests: 1/s}]", `there is no action "infer"`},
		{"weight", "weights: [{principals: [a], weight: 0}]", "the weight is 0"},
		{"track", "track: 0", "track is 0"},
		{"two documents", "rules: []\n---\nrules: []", "want one YAML document"},
		{"empty", "", "write 'rules: []' if that is meant"},
		{"a comment", "# rules", "the file says nothing"},
		{"an empty mapping", "{}", "the file says nothing"},
		{"keys alone", "rules:\nweights:\n", "the file says nothing"},
		{"large", strings.Repeat("#", MaxFile+1), "the most is"},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	_, err := Parse([]byte("rules:\n- {name: a, requests: x, each: y}\n- {name: a, concurrency: z}"))
	for _, want := range []string{"line 2", "line 3", `"x"`, `"y"`, `"z"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("all faults at once: %q is not in %v", want, err)
		}
	}
}

func TestAmounts(t *testing.T) {
	r, err := Parse([]byte(`rules:
- {name: a, requests: 120/min, bytes: {rate: 1.5KiB/s, burst: 3KB}, elements: 10/10s, compute: 250ms/s, concurrency: 7, bytes_in_flight: 2MiB}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Kind]Limit{Requests: {Rate: 2, Burst: 120}, Bytes: {Rate: 1536, Burst: 3000}, Elements: {Rate: 1, Burst: 10},
		Compute: {Rate: 250000, Burst: 250000}, Concurrency: {Most: 7}, BytesInFlight: {Most: 2 << 20}}
	for _, l := range r.rules[0].limits {
		if w := want[l.Kind]; l.Rate != w.Rate || l.Burst != w.Burst || l.Most != w.Most {
			t.Errorf("%v: got %v of %v, %v; want %v of %v, %v", l.Kind, l.Rate, l.Burst, l.Most, w.Rate, w.Burst, w.Most)
		}
		delete(want, l.Kind)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if r, err := Parse([]byte("rules: [{name: a, principals: p, groups: [g, h], models: m, actions: '*', concurrency: 1}]")); err != nil ||
		len(r.rules[0].principals) != 1 || len(r.rules[0].groups) != 2 || len(r.rules[0].models) != 1 || r.rules[0].actions != 1<<len(infer.Actions())-1 {
		t.Errorf("one text for a list: %+v, %v", r, err)
	}
	if r, err := Parse([]byte("rules: []")); err != nil || len(r.rules) != 0 {
		t.Errorf("no rules, in words: %v", err)
	}
}

func TestFollowsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(t.Context(), path, Deps{}); err == nil || !strings.Contains(err.Error(), "limits.yaml") {
		t.Errorf("no file: %v", err)
	}
	write("rules: [{name: a, concurrency: 1}]")
	var heard []error
	l, err := New(t.Context(), path, Deps{Log: slog.New(slog.DiscardHandler), Reloaded: func(err error) { heard = append(heard, err) }})
	if err != nil {
		t.Fatal(err)
	}
	most := func() int64 { return l.generation.Load().rules.rules[0].limits[0].Most }
	now := time.Now()
	look := func() {
		for range 3 {
			now = now.Add(configfile.Period)
			l.follow(&l.file, now)
		}
	}
	look()
	if len(heard) != 0 {
		t.Errorf("it is the same file: %v", heard)
	}
	write("rules: [{name: a, concurrency: x}]")
	look()
	look()
	if len(heard) != 1 || heard[0] == nil || most() != 1 {
		t.Errorf("a wrong file: heard %v, limit %d", heard, most())
	}
	write("rules: [{name: a, concurrency: 2}]")
	look()
	look()
	if len(heard) != 2 || heard[1] != nil || most() != 2 {
		t.Errorf("a right file: heard %v, limit %d", heard, most())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look()
	look()
	if len(heard) != 3 || heard[2] == nil || most() != 2 {
		t.Errorf("no file: heard %v, limit %d", heard, most())
	}
	write("rules: [{name: a, concurrency: 2}]")
	look()
	if len(heard) != 4 || heard[3] != nil {
		t.Errorf("it is back: heard %v", heard)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "rules: []", "rules: [{name: a, requests: {rate: 1/s, burst: 2}, each: principal, actions: ['*'], at: envoy}]",
		"rules: [{name: a, compute: 1ms/s, concurrency: 3, bytes_in_flight: 1GiB, models: [m], last: true}]\nweights: [{groups: [g], weight: 2}]\ntrack: 5",
		"a: &a [*a]", "rules: [{<<: {name: x}}]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		l, err := start(t.Context(), r, Deps{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // whatever it says, what was taken is given back
			env := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: 10, Principal: &infer.Principal{Name: "p"}}
			if err := l.Open(t.Context(), env); err != nil && infer.CodeOf(err) != infer.ResourceExhausted {
				t.Fatalf("%v", err)
			}
			l.Close(env, &infer.End{})
		}
		for _, m := range l.table.meters {
			if used := m.used.Load(); used != 0 {
				t.Fatalf("%+v holds %d", m.key, used)
			}
		}
	})
}
