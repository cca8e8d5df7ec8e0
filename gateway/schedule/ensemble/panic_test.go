package ensemble

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// A panic within a request ends the request: on whatever goroutine it comes up, no other
// request and no lock is the worse for it, the other steps end, and what was held is given back.
func TestPanics(t *testing.T) {
	many := model{decoupled: true}
	slow := model{}
	for name, row := range map[string]struct {
		cfg    Config
		broken string // whose answer can't be kept
		send   int    // which answer the caller's send panics at; 0: none
	}{
		"caller":               {steps("step a IN -> OUT"), "", 1},
		"caller of a stream":   {steps("step many IN -> M", "step b M -> OUT"), "", 2},
		"chain":                {steps("step a IN -> M", "step b M -> OUT"), "b", 0},
		"beside another":       {steps("step a IN -> L", "step b IN -> R", "step c L R -> OUT"), "b", 0},
		"before another":       {steps("step a IN -> L", "step b IN -> R", "step c L R -> OUT"), "a", 0},
		"beside a slow one":    {steps("step a IN -> L", "step slow IN -> R", "step c L R -> OUT"), "a", 0},
		"stream":               {steps("step many IN -> M", "step b M -> OUT"), "many", 0},
		"behind a stream":      {steps("step many IN -> M", "step b M -> OUT"), "b", 0},
		"behind a stream, two": {steps("step many IN -> M", "step b M -> L", "step a M -> R", "step c L R -> OUT"), "a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, row.cfg, map[string]model{})
				many.run = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
					for i := range 5 {
						resp := b.steps.echo(req, fmt.Sprint(i))
						resp.Final = false
						if err := send(resp); err != nil {
							return err
						}
					}
					return send(&infer.Response{Final: true})
				}
				slow.run = func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
					select {
					case <-ctx.Done():
					case <-time.After(time.Hour):
						t.Error("a step went on")
					}
					return ctx.Err()
				}
				b.steps.models["many"], b.steps.models["slow"] = many, slow
				if row.broken != "" {
					m := b.steps.models[row.broken]
					m.broken = func() { panic("broken") }
					b.steps.models[row.broken] = m
				}
				err := askFrail(t, b, row.send)
				if bug := new(infer.Bug); infer.CodeOf(err) != infer.Internal || !errors.As(err, &bug) {
					t.Errorf("error %v", err)
				}
				synctest.Wait()
				if b.steps.pins.Load() != 0 || b.steps.held.Load() != 0 {
					t.Errorf("%d pins and %d buffers are held", b.steps.pins.Load(), b.steps.held.Load())
				}
				if err := b.Drain(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// askFrail asks as a caller whose send panics at an answer; 0: none.
func askFrail(t *testing.T, b *bench, at int) error {
	req := &infer.Request{Rows: 1, Memory: b.steps.buffer(), Inputs: []infer.Tensor{{Name: "IN", Datatype: infer.Bytes, Shape: []int64{1, 2},
		Data: []byte("x")}}}
	defer req.Memory.Release()
	n := 0
	return b.Do(t.Context(), req, func(resp *infer.Response) error {
		defer resp.Memory.Release()
		if n++; n == at {
			panic("broken: send")
		}
		return nil
	})
}

// sick is an observer that panics.
type sick struct{}

func (sick) Executed(int, int, infer.ComputeTimes) { panic("broken: executed") }
func (sick) Queued(int)                            { panic("broken: queued") }

// An observer's panic fails no request that has its answer.
func TestPanickingObserver(t *testing.T) {
	b := newBench(t, steps("step a IN -> OUT"), map[string]model{})
	b.deps.Observer = sick{}
	if err := askFrail(t, b, 0); err != nil {
		t.Error(err)
	}
	if err := b.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if b.steps.pins.Load() != 0 || b.steps.held.Load() != 0 {
		t.Errorf("%d pins and %d buffers are held", b.steps.pins.Load(), b.steps.held.Load())
	}
}
