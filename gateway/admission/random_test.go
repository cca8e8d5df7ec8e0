package admission

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

func limits(t testing.TB, file string, now func() int64) *Limits {
	t.Helper()
	rules, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	l, err := start(t.Context(), rules, Deps{Log: slog.New(slog.DiscardHandler), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The one number of a bucket says the same as a count of tokens that comes back with
// time, to a token's rounding.
func TestBucketAgainstTokens(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 4))
		rate, burst := math.Exp(rng.Float64()*12), 1+math.Floor(rng.Float64()*1000)
		s := newSpeed(rate, burst)
		var b bucket
		tokens, now := burst, int64(1)
		for step := range 2000 {
			dt := rng.Int64N(int64(1+2e9/rate)) + 1
			now += dt
			tokens = min(burst, tokens+rate*float64(dt)/1e9)
			n := 1 + rng.Int64N(int64(1+burst/4))
			wait := b.take(&s, now, s.cost(n))
			if slack := 1e-3 + rate*2e-9*float64(step+1); math.Abs(tokens-float64(n)) > slack {
				if got, want := wait == 0, tokens >= float64(n); got != want {
					t.Fatalf("seed %d step %d: %d of %.6f tokens: taken %v", seed, step, n, tokens, got)
				}
				if ahead := (float64(n) - tokens) / rate * 1e9; wait > 0 && float64(n) <= burst && math.Abs(ahead-float64(wait)) > 1e3+slack/rate*1e9 {
					t.Fatalf("seed %d: wait %d ns, want %.0f", seed, wait, ahead)
				}
			}
			if wait == 0 {
				tokens -= float64(n)
			}
			if rng.IntN(10) == 0 {
				n := rng.Int64N(int64(burst) + 1)
				b.charge(now, s.cost(n))
				tokens -= float64(n)
			}
		}
	}
}

// open is a call that was taken.
type open struct {
	env   *infer.Envelope
	size  int64
	model string
}

// world is limits beside a simple model of what is held: every call that was taken counts
// until it is closed.
type world struct {
	t           *testing.T
	rng         *rand.Rand
	now         int64
	l           *Limits
	calls       []open
	byPrincipal map[string]int64
	byModel     map[string]int64
	bytes       int64
	rated       map[string]int // calls that were taken, by principal and model
}

// begin opens a call, as over HTTP or as over gRPC, where the body names the model.
func (w *world) begin() {
	c := open{size: w.rng.Int64N(600), model: fmt.Sprint("m", w.rng.IntN(3))}
	who := fmt.Sprint("p", w.rng.IntN(6))
	c.env = &infer.Envelope{Action: infer.ActionInference, Principal: &infer.Principal{Name: who}, BodySize: c.size, Model: c.model}
	if w.rng.IntN(2) == 0 {
		c.env.Model, c.env.BodySize = "", -1
	}
	err := w.l.Open(w.t.Context(), c.env)
	if err == nil && c.env.Model == "" {
		req := &infer.Request{Model: c.model, Envelope: c.env, Inputs: []infer.Tensor{{Shape: []int64{1}, Data: make([]byte, c.size)}}}
		err = w.l.Request(w.t.Context(), req)
	}
	room := w.byPrincipal[who] < 3 && w.byModel[c.model] < 5 && w.bytes+c.size <= 2000
	switch {
	case err == nil && !room:
		w.t.Fatalf("taken with %d calls of %s, %d of %s, %d bytes", w.byPrincipal[who], who, w.byModel[c.model], c.model, w.bytes)
	case err == nil:
		w.calls = append(w.calls, c)
		w.count(c, 1)
		w.rated[who+c.model]++
		return
	case room && infer.ReasonOf(err) != infer.ReasonRate:
		w.t.Fatalf("refused with room: %v", err)
	}
	w.l.Close(c.env, &infer.End{})
}

func (w *world) count(c open, n int64) {
	w.byPrincipal[c.env.Principal.Name] += n
	w.byModel[c.model] += n
	w.bytes += n * c.size
}

// end closes any call.
func (w *world) end() {
	i := w.rng.IntN(len(w.calls))
	c := w.calls[i]
	w.calls = append(w.calls[:i], w.calls[i+1:]...)
	w.l.Close(c.env, &infer.End{})
	w.count(c, -1)
}

// None counts twice, and refusals hold nothing; also while the file changes and room is
// short: then meters of those that are idle are given up and made anew.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			text := fmt.Sprintf(`
track: %d
rules:
- {name: calls, each: principal, concurrency: 3}
- {name: models, each: model, concurrency: 5}
- {name: bodies, bytes_in_flight: 2000}
- {name: rate, each: principal+model, requests: {rate: 5/s, burst: 5}}
`, []int{65536, 100}[seed%2])
			w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 8)), now: int64(time.Hour), byPrincipal: map[string]int64{}, byModel: map[string]int64{}, rated: map[string]int{}}
			w.l = limits(t, text, func() int64 { return w.now })
			for range 2000 {
				w.now += w.rng.Int64N(int64(20 * time.Millisecond))
				switch {
				case w.rng.IntN(200) == 0:
					rules, err := Parse([]byte(text))
					if err != nil {
						t.Fatal(err)
					}
					w.l.use(rules)
				case w.rng.IntN(100) == 0:
					w.l.sweep()
				case len(w.calls) > 0 && w.rng.IntN(2) == 0:
					w.end()
				default:
					w.begin()
				}
			}
			for who, n := range w.rated {
				if most := 5 + 5*(w.now-int64(time.Hour))/1e9; int64(n) > most+1 {
					t.Errorf("%s had %d calls, want at most %d", who, n, most)
				}
			}
			for len(w.calls) > 0 {
				w.end()
			}
			w.now += int64(time.Minute)
			w.l.sweep()
			w.l.sweep()
			if n := w.l.table.size(); n != 0 {
				t.Errorf("%d meters are left of nothing", n)
			}
		})
	}
}

// Any number of names can't take more than their room, nor get one caller's bucket filled
// anew: what is not idle stays, and newcomers share.
func TestRoomIsBounded(t *testing.T) {
	now := int64(time.Hour)
	l := limits(t, "track: 64\nrules: [{name: r, each: principal, requests: 1/h}]", func() int64 { return now })
	call := func(name string) error {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Principal: &infer.Principal{Name: name}}
		err := l.Open(t.Context(), env)
		l.Close(env, &infer.End{})
		return err
	}
	if err := call("victim"); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 5000 {
		now += int64(time.Millisecond)
		if call(fmt.Sprint("stranger", i)) != nil {
			refused++
		}
	}
	if n := l.table.size(); n > 4*64+1 {
		t.Errorf("%d meters", n)
	}
	if refused < 4500 {
		t.Errorf("%d strangers were refused: there was no room for so many", refused)
	}
	if err := call("victim"); infer.ReasonOf(err) != infer.ReasonRate {
		t.Errorf("the bucket was filled anew: %v", err)
	}
}

// A principal whose groups change falls under other rules at once.
func TestGroupsChange(t *testing.T) {
	l := limits(t, "rules: [{name: r, groups: [bad], requests: 1/h}]", nil)
	call := func(groups ...string) error {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Principal: &infer.Principal{Name: "p", Groups: groups}}
		err := l.Open(t.Context(), env)
		l.Close(env, &infer.End{})
		return err
	}
	for range 3 {
		if err := call("good"); err != nil {
			t.Fatal(err)
		}
	}
	if err := call("bad"); err != nil {
		t.Fatal(err)
	}
	if err := call("bad"); err == nil {
		t.Error("the second call passed")
	}
	if err := call("good"); err != nil {
		t.Fatal(err)
	}
}

func TestWeights(t *testing.T) {
	l := limits(t, "weights: [{groups: [gold], weight: 4}, {principals: ['p*'], weight: 2}]", nil)
	for _, c := range []struct {
		who  *infer.Principal
		want int
	}{{nil, 0}, {&infer.Principal{Name: "x"}, 0}, {&infer.Principal{Name: "p1"}, 2}, {&infer.Principal{Name: "p2", Groups: []string{"gold"}}, 4}} {
		env := &infer.Envelope{Action: infer.ActionInference, Principal: c.who}
		if err := l.Open(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		if env.Weight != c.want {
			t.Errorf("%+v: weight %d, want %d", c.who, env.Weight, c.want)
		}
		l.Close(env, &infer.End{})
	}
}

func TestWhoIsMeant(t *testing.T) {
	a, nobody := &subject{principal: "a", groups: []string{"g", "h"}}, &subject{}
	for _, c := range []struct {
		principals, groups []string
		a, nobody          bool
	}{{nil, nil, true, true}, {[]string{"*"}, nil, true, false}, {[]string{"anonymous"}, nil, false, true}, {[]string{"authenticated"}, nil, true, false},
		{[]string{"b"}, nil, false, false}, {nil, []string{"h*"}, true, false}, {[]string{"b"}, []string{"g"}, true, false}, {[]string{"a"}, []string{"x"}, true, false}} {
		if got := matches(c.principals, c.groups, a); got != c.a {
			t.Errorf("%v %v: a %v", c.principals, c.groups, got)
		}
		if got := matches(c.principals, c.groups, nobody); got != c.nobody {
			t.Errorf("%v %v: nobody %v", c.principals, c.groups, got)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{{"", "", true}, {"*", "", true}, {"*", "spiffe://x/y", true}, {"a*c", "abbc", true}, {"a*c", "abb", false}, {"a?c", "abc", true},
		{"a?c", "ac", false}, {"*a*b*", "xaxbx", true}, {"*a*b", "xaxbx", false}, {"a", "ab", false}, {"ab", "a", false},
		{strings.Repeat("*a", 30), strings.Repeat("a", 100) + "b", false}} {
		if got := glob(c.pattern, c.text); got != c.want {
			t.Errorf("%q of %q: %v", c.text, c.pattern, got)
		}
	}
}
