package admission

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/redistest"
)

// The budget of the fault tests, and what a busy machine may add to it.
const (
	testBudget = 20 * time.Millisecond
	slack      = 5 * time.Second
)

// gatewayOn is a gateway's limits that are shared through a Redis.
func gatewayOn(t *testing.T, port, file string, budget time.Duration) *Limits {
	t.Helper()
	return gatewayLogging(t, port, file, budget, io.Discard)
}

func gatewayLogging(t *testing.T, port, file string, budget time.Duration, log io.Writer) *Limits {
	t.Helper()
	rules, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	timeout := fmt.Sprint(max(100, 5*budget.Milliseconds())) // a busy machine is no fault of Redis
	r, err := ParseRedis(map[string]string{"host": "127.0.0.1", "port": port, "budget": fmt.Sprint(budget.Milliseconds()), "connect_timeout": timeout, "socket_timeout": timeout})
	if err != nil {
		t.Fatal(err)
	}
	l, err := start(t.Context(), rules, Deps{Log: slog.New(slog.NewTextHandler(log, nil)), Redis: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return l
}

// enter opens a call of a principal, which the result closes; nil: it was refused.
func enter(t *testing.T, l *Limits, who string, size int64) (leave func(*infer.Request)) {
	t.Helper()
	env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Principal: &infer.Principal{Name: who}, BodySize: size}
	if err := l.Open(t.Context(), env); err != nil {
		if infer.CodeOf(err) != infer.ResourceExhausted {
			t.Errorf("%v", err)
		}
		l.Close(env, &infer.End{})
		return nil
	}
	return func(r *infer.Request) { l.Close(env, &infer.End{Request: r}) }
}

// within polls until ok.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("after %v still not: %s", d, what)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// Two gateways together pass what the limit says: never more than the burst and what
// came back, and nearly all of it. Each principal's bucket is its own.
func TestRateIsShared(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: r, each: principal, requests: {rate: 200/s, burst: 100}}]"
	gateways := []*Limits{gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)}
	begin := time.Now()
	var passed [2]atomic.Int64
	var wg sync.WaitGroup
	for _, l := range gateways {
		for who := range passed {
			wg.Go(func() {
				for time.Since(begin) < 1500*time.Millisecond {
					if leave := enter(t, l, fmt.Sprint("p", who), 0); leave != nil {
						leave(nil)
						passed[who].Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(begin).Seconds()
	for who := range passed {
		n, most := float64(passed[who].Load()), 100+200*took
		t.Logf("principal %d: %.0f of %.0f", who, n, most)
		if n > most+1 || n < 0.8*most {
			t.Errorf("principal %d: %.0f calls passed in %.2f s, want at most %.0f and nearly that", who, n, took, most)
		}
	}
	for _, l := range gateways {
		if f := l.Figures(); f.Failed > 0 || !f.Connected {
			t.Errorf("figures %+v", f)
		}
	}
}

// Of few units each is asked for, so that none is wasted: exactly the burst passes.
func TestFewAreSharedExactly(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: r, requests: 7/h}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	passed := 0
	for range 10 {
		for _, l := range []*Limits{a, b} {
			if leave := enter(t, l, "p", 0); leave != nil {
				leave(nil)
				passed++
			}
		}
	}
	if passed != 7 {
		t.Errorf("%d calls passed, want 7", passed)
	}
}

// What is held in one gateway is held in the other, and free there once it is over.
func TestHeldIsShared(t *testing.T) {
	s := redistest.Start(t)
	for _, c := range []struct {
		name, file string
		size       int64
	}{{"concurrency", "rules: [{name: c, concurrency: 3}]", 0}, {"bytes", "rules: [{name: b, bytes_in_flight: 310}]", 100}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := gatewayOn(t, s.Port, c.file, time.Second), gatewayOn(t, s.Port, c.file, time.Second)
			first, second, third := enter(t, a, "p", c.size), enter(t, b, "p", c.size), enter(t, a, "p", c.size)
			if first == nil || second == nil || third == nil {
				t.Fatal("refused with room")
			}
			for _, l := range []*Limits{a, b} {
				if enter(t, l, "p", c.size) != nil {
					t.Error("taken without room")
				}
			}
			first(nil)
			var fourth func(*infer.Request)
			within(t, time.Minute, "the other gateway gets the room", func() bool { fourth = enter(t, b, "p", c.size); return fourth != nil })
			if enter(t, a, "p", c.size) != nil {
				t.Error("taken without room")
			}
			for _, leave := range []func(*infer.Request){second, third, fourth} {
				leave(nil)
			}
			within(t, time.Minute, "nothing is left in Redis", func() bool {
				n, err := s.Say("DBSIZE")
				return err == nil && n == ":0"
			})
		})
	}
}

// Sequences of all gateways count together, until they end.
func TestSequencesAreShared(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: few, each: principal, sequences: 3}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	env := &infer.Envelope{Action: infer.ActionInference, Principal: &infer.Principal{Name: "p"}}
	req := &infer.Request{Model: "m", Origin: env}
	begin := func(l *Limits) *SequenceHold {
		h, err := l.BeginSequence(t.Context(), req)
		if err != nil && infer.ReasonOf(err) != infer.ReasonSequences {
			t.Error(err)
		}
		return h
	}
	held := []*SequenceHold{begin(a), begin(b), begin(a)}
	if held[0] == nil || held[1] == nil || held[2] == nil {
		t.Fatal("refused with room")
	}
	for _, l := range []*Limits{a, b} {
		if begin(l) != nil {
			t.Error("begun without room")
		}
	}
	held[0].End()
	within(t, time.Minute, "the other gateway gets the room", func() bool { held[0] = begin(b); return held[0] != nil })
	for _, h := range held {
		h.End()
	}
	within(t, time.Minute, "nothing is left in Redis", func() bool {
		n, err := s.Say("DBSIZE")
		return err == nil && n == ":0"
	})
}

// Compute time that one gateway's models took is paid off before the other's start.
func TestComputeIsShared(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: gpu, compute: 100ms/s}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	leave := enter(t, a, "p", 0)
	if leave == nil {
		t.Fatal("refused")
	}
	req := &infer.Request{Rows: 1, Times: infer.Times{ComputeStart: 1, ComputeEnd: int64(30 * time.Second), BatchRows: 1}}
	leave(req)
	within(t, time.Minute, "the other gateway refuses", func() bool {
		leave := enter(t, b, "p", 0)
		if leave != nil {
			leave(nil)
		}
		return leave == nil
	})
	if enter(t, a, "p", 0) != nil {
		t.Error("the gateway itself passed a call")
	}
}

// Envoy's service in one process knows what is left of what gateways spend, and takes
// nothing of it.
func TestEnvoyLooksAtSharedRates(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: r, each: principal, requests: 3/h}]"
	gateway, edge := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	ask := func(who string) bool {
		v := edge.Hit(t.Context(), Query{Principal: &infer.Principal{Name: who}, Action: infer.ActionInference})
		return !v.Over
	}
	for range 20 {
		if !ask("a") {
			t.Fatal("nothing was spent, and something is over")
		}
	}
	for i := range 3 {
		leave := enter(t, gateway, "a", 0)
		if leave == nil {
			t.Fatalf("call %d was refused", i)
		}
		leave(nil)
	}
	if enter(t, gateway, "a", 0) != nil {
		t.Error("the fourth call passed")
	}
	within(t, time.Minute, "Envoy hears of it", func() bool { return !ask("a") })
	if !ask("b") {
		t.Error("b has spent nothing")
	}
}

// Claims of a gateway that is gone end by themselves, others' are not touched, and what is
// held already is claimed whatever the limit says.
func TestClaims(t *testing.T) {
	s := redistest.Start(t)
	c := redisclient.NewClient(&redisclient.Options{Addr: "127.0.0.1:" + s.Port, Protocol: 2, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	script := redisclient.NewScript(claimScript)
	claim := func(id string, used, want, ttl int) (int64, int64) {
		pair, err := script.Run(t.Context(), c, []string{"k"}, strings.Repeat(id, 16), 10, used, want, ttl).Int64Slice()
		if err != nil {
			t.Fatal(err)
		}
		return pair[0], pair[1]
	}
	check := func(got, others, want, wantOthers int64) {
		t.Helper()
		if got != want || others != wantOthers {
			t.Errorf("got %d beside %d, want %d beside %d", got, others, want, wantOthers)
		}
	}
	got, others := claim("a", 0, 6, 100)
	check(got, others, 6, 0)
	got, others = claim("b", 0, 6, 10000)
	check(got, others, 4, 6)
	got, others = claim("c", 2, 6, 10000) // it held 2 while Redis was away
	check(got, others, 2, 10)
	within(t, time.Minute, "the claim of a ends", func() bool { got, others = claim("b", 0, 10, 10000); return others == 2 })
	check(got, others, 8, 2)
	got, others = claim("b", 0, 0, 10000)
	check(got, others, 0, 2)
}

// load asks from four goroutines, n times in all, and holds the calls against the budget:
// none waits longer, and no more than a few wait at all.
func load(t *testing.T, l *Limits, n int) {
	t.Helper()
	var longest atomic.Int64
	before := l.Figures().Late
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for range n / 4 {
				begin := time.Now()
				leave := enter(t, l, fmt.Sprint("p", g%2), 100)
				took := time.Since(begin)
				for m := longest.Load(); int64(took) > m && !longest.CompareAndSwap(m, int64(took)); m = longest.Load() {
				}
				if leave != nil {
					leave(nil)
				}
			}
		})
	}
	wg.Wait()
	if took := time.Duration(longest.Load()); took > testBudget+slack {
		t.Errorf("a call took %v, the budget is %v", took, testBudget)
	}
	late := l.Figures().Late - before
	if late > 60 {
		t.Errorf("%d of %d calls waited in vain", late, n)
	}
	t.Logf("longest of %d calls: %v; %d waited in vain", n, time.Duration(longest.Load()), late)
}

const faultFile = `rules:
- {name: r, each: principal, requests: {rate: 1000/s, burst: 50}, concurrency: 3}
- {name: b, bytes: 1MB/s, bytes_in_flight: 10KB}
`

// A Redis that dies or freezes under load costs no error and no more than the budget;
// local limits count meanwhile, and it is used again when it is back.
func TestRedisGone(t *testing.T) {
	for _, c := range []struct {
		name       string
		gone, back func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Run},
		{"frozen", func(s *redistest.Server) { s.Signal(syscall.SIGSTOP) }, func(s *redistest.Server) { s.Signal(syscall.SIGCONT) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			l := gatewayOn(t, s.Port, faultFile, testBudget)
			load(t, l, 400)
			within(t, time.Minute, "connected", func() bool { load(t, l, 40); return l.Figures().Connected })
			c.gone(s)
			load(t, l, 4000)
			within(t, time.Minute, "gone", func() bool { load(t, l, 40); return !l.Figures().Connected })
			// the local limit: nobody is let through without one
			passed := 0
			begin := time.Now()
			for range 2000 {
				if leave := enter(t, l, "p0", 0); leave != nil {
					leave(nil)
					passed++
				}
			}
			if most := 50 + 1000*time.Since(begin).Seconds(); float64(passed) > most+1 {
				t.Errorf("%d calls passed alone, want at most %.0f", passed, most)
			}
			c.back(s)
			within(t, time.Minute, "connected again", func() bool { return l.Figures().Connected })
			load(t, l, 400)
			within(t, time.Minute, "nothing is held", func() bool {
				for _, m := range l.table.due(l.now()) {
					if m.used.Load() != 0 {
						t.Fatalf("%+v holds %d", m.key, m.used.Load())
					}
				}
				return len(l.table.due(l.now())) == 0
			})
		})
	}
}

func TestNobodyThere(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	l := gatewayOn(t, s.Port, faultFile, testBudget)
	load(t, l, 2000)
}

func TestRedisSettings(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings map[string]string
		want     string
	}{
		{map[string]string{"host": "h"}, "give host=HOST,port=PORT"},
		{map[string]string{"host": "h", "port": "1", "hots": "x"}, "there is no setting 'hots'"},
		{map[string]string{"host": "h", "port": "1", "ttl": "5"}, "there is no setting 'ttl'"},
		{map[string]string{"host": "h", "port": "1", "password_file": filepath.Join(t.TempDir(), "none")}, "password_file"},
		{map[string]string{"host": "h", "port": "1", "password_file": empty}, "the file says nothing"},
	} {
		if _, err := ParseRedis(c.settings); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.settings, err, c.want)
		}
	}
}

// A gateway that was asked once keeps nothing of a small burst from the others.
func TestNothingIsKeptOfFew(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: r, requests: 7/h}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	passed := 0
	for i := range 10 {
		l := b
		if i == 0 {
			l = a
		}
		if leave := enter(t, l, "p", 0); leave != nil {
			leave(nil)
			passed++
		}
	}
	if passed != 7 {
		t.Errorf("%d calls passed, want 7", passed)
	}
}

// What a gateway drew for a call that another limit refused goes back after a while, also
// if nobody calls there again.
func TestUnusedCreditGoesBack(t *testing.T) {
	s := redistest.Start(t)
	const file = "rules: [{name: r, each: principal, requests: 1/h}, {name: b, bytes: {rate: 1/h, burst: 1000}}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	closes := func(l *Limits, who string, size int64) bool {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Principal: &infer.Principal{Name: who}, BodySize: size}
		err := l.Open(t.Context(), env)
		l.Close(env, &infer.End{Received: size})
		return err == nil
	}
	if !closes(a, "p", 400) || closes(a, "p", 500) {
		t.Fatal("want one call of p")
	}
	within(t, time.Minute, "what is left passes elsewhere", func() bool { return closes(b, "q", 600) })
	if closes(b, "s", 1) {
		t.Error("more than the burst passed")
	}
}
