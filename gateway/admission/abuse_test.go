package admission

import (
	"fmt"
	"math"
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
