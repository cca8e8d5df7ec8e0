package pipeline

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// ledger is guard and admission of a test: it keeps what it was asked.
type ledger struct {
	asked   []string
	forbids string
	full    error
}

func (l *ledger) say(format string, args ...any) {
	l.asked = append(l.asked, fmt.Sprintf(format, args...))
}

type ledgerGuard struct{ *ledger }

func (g ledgerGuard) Open(_ context.Context, env *infer.Envelope) error {
	g.say("who")
	env.Principal = &infer.Principal{Name: "alice"}
	return nil
}

func (g ledgerGuard) Model(env *infer.Envelope, model string) error {
	g.say("right of %s on %s", env.Principal.Name, model)
	if model == g.forbids {
		return infer.Refusef(infer.PermissionDenied, infer.ReasonForbidden, "no")
	}
	return nil
}

type ledgerAdmission struct{ *ledger }

func (a ledgerAdmission) Open(_ context.Context, env *infer.Envelope) error {
	a.say("take in %d bytes", env.BodySize)
	return a.full
}
func (a ledgerAdmission) Request(context.Context, *infer.Request) error {
	a.say("charge")
	return nil
}
func (a ledgerAdmission) Waits() bool                             { return false }
func (a ledgerAdmission) Close(env *infer.Envelope, _ *infer.End) { a.say("close %s", env.Method) }

// Who calls is asked once for a stream; rights, limits and the end are each request's.
func TestRequestsWithinAStream(t *testing.T) {
	full := infer.Refusef(infer.ResourceExhausted, infer.ReasonConcurrency, "full")
	l := &ledger{forbids: "secret"}
	p := New(Config{}, Deps{Models: models{&model{}}, Guard: ledgerGuard{l}, Admission: ledgerAdmission{l}})
	stream := &infer.Envelope{Protocol: "grpc", Method: "ModelStreamInfer", Action: infer.ActionInference, Streaming: true,
		Carrier: true, Header: func(string) string { return "" }}
	if _, err := p.Open(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	one := func(name string) (err error) {
		env := &infer.Envelope{BodySize: 5, Outer: stream}
		if _, err = p.Open(t.Context(), env); err == nil {
			err = carry(t.Context(), p, &infer.Request{Model: name, Streaming: true, Envelope: env}, func(r *infer.Response) error {
				r.Memory.Release()
				return nil
			})
		}
		if n := p.InFlight("grpc"); n != 2 {
			t.Errorf("%d calls in flight with a request, want it and the stream", n)
		}
		p.Close(env, &infer.End{Err: err})
		return err
	}
	if err := one("m"); err != nil {
		t.Error(err)
	}
	if err := one("secret"); infer.CodeOf(err) != infer.PermissionDenied {
		t.Errorf("a model without right: %v", err)
	}
	l.full = full
	if err := one("m"); err != full {
		t.Errorf("beyond the limits: %v", err)
	}
	l.full = nil
	p.Stop()
	if err := one("m"); infer.ReasonOf(err) != infer.ReasonStopping {
		t.Errorf("when stopping: %v", err)
	}
	p.Close(stream, &infer.End{})
	want := "[who take in 5 bytes right of alice on m charge close ModelStreamInfer " +
		"take in 5 bytes right of alice on secret close ModelStreamInfer take in 5 bytes close ModelStreamInfer " +
		"close ModelStreamInfer close ModelStreamInfer]"
	if got := fmt.Sprint(l.asked); got != want {
		t.Errorf("asked %s,\nwant  %s", got, want)
	}
	if n := p.InFlight("grpc"); n != 0 {
		t.Errorf("%d calls in flight at the end", n)
	}
}
