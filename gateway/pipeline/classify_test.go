package pipeline

import (
	"context"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// wide is a model with an output of many values.
type wide struct{ *model }

const values = 20_000

func (m wide) Do(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
	return send(&infer.Response{Final: true, Memory: infer.NewBuffer(nil, func(*infer.Buffer) { m.freed++ }), Outputs: []infer.Tensor{
		{Name: "a", Datatype: infer.Uint8, Shape: []int64{1, values}, Data: make([]byte, values)},
		{Name: "b", Datatype: infer.Uint8, Shape: []int64{1, values}, Data: make([]byte, values)}}})
}

type wides struct {
	models
	wide wide
}

func (m wides) Acquire(context.Context, string, string) (Model, error) { return m.wide, nil }

// Classes of all outputs share one bound, count while the response is held, and end with their caller; what is refused
// leaves nothing behind.
func TestClassesAreBounded(t *testing.T) {
	const size = 209_000 // of the classes of one output, or some bytes less
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, c := range map[string]struct {
		ctx         context.Context
		most, limit int64
		reason      infer.Reason // "": it is answered
	}{
		"in bounds":         {t.Context(), 2 * size, 2 << 20, ""},
		"one in bounds":     {t.Context(), size, 2 << 20, infer.ReasonTooLarge},
		"memory for one":    {t.Context(), 2 * size, 600_000, infer.ReasonMemory},
		"memory for none":   {t.Context(), 2 * size, 1000, infer.ReasonMemory},
		"the caller left":   {gone, 2 * size, 2 << 20, infer.ReasonCancelled},
		"the default bound": {t.Context(), 0, 2 << 20, ""},
	} {
		for _, started := range []bool{false, true} {
			m, budget := &model{}, &infer.Budget{Limit: c.limit}
			p := New(Config{ClassBytes: c.most}, Deps{Models: wides{models{m}, wide{m}}, Responses: budget})
			req := &infer.Request{Model: "m", Outputs: []infer.RequestedOutput{{Name: "a", Classification: values},
				{Name: "b", Classification: values}}}
			held, sent := int64(0), 0
			send := func(r *infer.Response) error {
				held, sent = budget.Used(), sent+1
				r.Memory.Release()
				return nil
			}
			var err error
			if to := (&taker{send: send}); started {
				if wait := p.Start(c.ctx, req, to); wait != nil {
					wait()
				}
				err = to.err
			} else {
				err = carry(c.ctx, p, req, send)
			}
			if (err == nil) != (c.reason == "") || err != nil && infer.ReasonOf(err) != c.reason {
				t.Errorf("%s, started %t: %v, want reason %q", name, started, err, c.reason)
			}
			if err == nil && (sent != 1 || held < size*9/10*2 || held > 3*size) || budget.Used() != 0 || m.freed != 1 {
				t.Errorf("%s, started %t: %d responses with %d bytes, %d bytes left, memory freed %d times", name, started, sent, held,
					budget.Used(), m.freed)
			}
		}
	}
}

// taker is a Sink that gives responses to send.
type taker struct {
	send infer.SendFunc
	err  error
}

func (s *taker) Large(*infer.Response) bool       { return false }
func (s *taker) Send(r *infer.Response) error     { return s.send(r) }
func (s *taker) Done(err error) (f infer.Flusher) { s.err = err; return nil }

// carry carries a request to its end, on this goroutine.
func carry(ctx context.Context, p *Pipeline, req *infer.Request, send infer.SendFunc) error {
	to := taker{send: send}
	p.Infer(ctx, req, &to)
	return to.err
}
