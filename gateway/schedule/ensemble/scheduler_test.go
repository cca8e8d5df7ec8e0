package ensemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

const noRegion = 99

// fakeSteps runs steps as functions, and counts what must come to zero.
type fakeSteps struct {
	models map[string]model
	pins   atomic.Int64
	held   atomic.Int64 // references to answers' memory, and to requests'

	mu   sync.Mutex
	seen []*infer.Request
}

type model struct {
	run       func(ctx context.Context, req *infer.Request, send infer.SendFunc) error
	decoupled bool
	flat      bool
	missing   bool
	broken    func() // called with a request's lock held; nil: nothing
	device    string
	reaches   bool // clients' memory
}

type pinned struct {
	model
	s *fakeSteps
}

func (p *pinned) Batched() bool {
	if p.broken != nil {
		p.broken()
	}
	return !p.flat
}
func (p *pinned) Decoupled() bool { return p.decoupled }
func (p *pinned) Device() string  { return p.device }
func (p *pinned) Release()        { p.s.pins.Add(-1) }

func (p *pinned) Reaches(infer.Place) bool { return p.reaches }

func (p *pinned) Fit(_ string, batched bool, shape []int64) []int64 {
	return schedule.Fit([]int64{2}, !p.flat, batched, shape)
}

func (s *fakeSteps) Pin(_ context.Context, m *schedule.StepModel) (schedule.Pinned, error) {
	f, ok := s.models[m.Name]
	if ok && f.missing {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Request for unknown model: '%s' has no available versions", m.Name)
	}
	s.pins.Add(1)
	return &pinned{f, s}, nil
}

// Bring gives memory with the number of the region, and refuses one that is none.
func (s *fakeSteps) Bring(_ context.Context, p infer.Place) (*infer.Buffer, error) {
	if p.Region == noRegion {
		return nil, infer.Errorf(infer.InvalidArg, "no region")
	}
	b := s.buffer()
	copy(b.Data, fmt.Sprint("region", p.Region))
	return b, nil
}

func (s *fakeSteps) Call(ctx context.Context, m schedule.Pinned, req *infer.Request, send infer.SendFunc) error {
	s.mu.Lock()
	s.seen = append(s.seen, req)
	s.mu.Unlock()
	p := m.(*pinned)
	req.Times.ComputeStart, req.Times.ComputeInputEnd, req.Times.ComputeOutputStart, req.Times.ComputeEnd = 10, 11, 13, 16
	if p.run != nil {
		return p.run(ctx, req, send)
	}
	return send(s.echo(req, ""))
}

// buffer is memory that has to be given back.
func (s *fakeSteps) buffer() *infer.Buffer {
	s.held.Add(1)
	return infer.NewBuffer(make([]byte, 8), func(*infer.Buffer) { s.held.Add(-1) })
}

// echo answers every output with the bytes of all inputs, behind the model's mark.
func (s *fakeSteps) echo(req *infer.Request, more string) *infer.Response {
	var parts []string
	for _, in := range req.Inputs {
		parts = append(parts, string(in.Data))
	}
	resp := &infer.Response{Final: true, Memory: s.buffer()}
	shape := []int64{1, 2}
	if len(req.Inputs) > 0 {
		shape = req.Inputs[0].Shape
	}
	for _, out := range req.Outputs {
		resp.Outputs = append(resp.Outputs, infer.Tensor{Name: out.Name, Datatype: infer.Bytes, Shape: shape,
			Data: []byte(req.Model + more + "(" + strings.Join(parts, ",") + ")")})
	}
	return resp
}

// bench is a scheduler over fakeSteps.
type bench struct {
	*Scheduler
	steps *fakeSteps

	mu    sync.Mutex // of what follows
	spent infer.ComputeTimes
	runs  int
}

func (b *bench) Executed(_, _ int, c infer.ComputeTimes) {
	b.mu.Lock()
	b.spent, b.runs = c, b.runs+1
	b.mu.Unlock()
}

func (b *bench) Queued(int) {}

func newBench(t testing.TB, cfg Config, models map[string]model) *bench {
	t.Helper()
	b := &bench{steps: &fakeSteps{models: models}}
	cfg.Model.Name, cfg.Model.Version, cfg.Model.MaxBatchSize = "e", 1, 8
	var err error
	b.Scheduler, err = New(cfg, schedule.Deps{Steps: b.steps, Observer: b, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n, held := b.steps.pins.Load(), b.steps.held.Load(); n != 0 || held != 0 {
			t.Errorf("%d models pinned, %d buffers held at the end", n, held)
		}
	})
	return b
}

// do runs a request of one input and gives its answers as text.
func (b *bench) do(ctx context.Context, req *infer.Request) ([]string, error) {
	req.Memory = b.steps.buffer()
	defer req.Memory.Release()
	if req.Inputs == nil {
		req.Inputs = []infer.Tensor{{Name: "IN", Datatype: infer.Bytes, Shape: []int64{1, 2}, Data: []byte("x")}}
	}
	req.Rows = 1
	var got []string
	err := b.Do(ctx, req, func(resp *infer.Response) error {
		text := ""
		for _, out := range resp.Outputs {
			text += fmt.Sprintf("%s=%s ", out.Name, out.Data)
		}
		if resp.Final {
			text += "."
		}
		got = append(got, text)
		resp.Memory.Release()
		return nil
	})
	return got, err
}

func steps(lines ...string) Config {
	s := script{}
	s.describe(strings.Fields("input IN"))
	s.describe(strings.Fields("output OUT"))
	for _, line := range lines {
		s.describe(strings.Fields(line))
	}
	for i := range s.cfg.Steps {
		for k := range s.cfg.Steps[i].Outputs {
			s.cfg.Steps[i].Outputs[k].Name = s.cfg.Steps[i].Outputs[k].Tensor
		}
	}
	return s.cfg
}

func TestChain(t *testing.T) {
	b := newBench(t, steps("step a IN -> M", "step b M IN -> OUT"), nil)
	req := &infer.Request{ID: "r", Params: infer.Params{{Name: "p"}}, Priority: 3, Timeout: time.Second,
		Correlation: infer.Correlation{ID: 7}, SequenceStart: true}
	got, err := b.do(t.Context(), req)
	if err != nil || len(got) != 1 || got[0] != "OUT=b(a(x),x) ." {
		t.Fatalf("got %q, %v", got, err)
	}
	for _, r := range b.steps.seen {
		if r.ID != "r" || r.Priority != 3 || r.Timeout != time.Second || len(r.Params) != 1 || r.Correlation.ID != 7 || !r.SequenceStart ||
			r.SequenceEnd || r.Depth != 1 || !r.Streaming {
			t.Errorf("step's request %+v", r)
		}
	}
	if want := (infer.ComputeTimes{Input: 2, Infer: 4, Output: 6}); b.spent != want || b.runs != 1 {
		t.Errorf("spent %+v in %d executions, want %+v", b.spent, b.runs, want)
	}
	if d := req.Times; d.ComputeInputEnd-d.ComputeStart != 2 || d.ComputeEnd-d.ComputeOutputStart != 6 {
		t.Errorf("times %+v", d)
	}
}

// A step that gives its inputs back before its answer takes them from no other step.
func TestStepGivesInputsBack(t *testing.T) {
	var b *bench
	early := func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		resp := b.steps.echo(req, "")
		req.ReleaseInputs()
		return send(resp)
	}
	b = newBench(t, steps("step a IN -> M", "step b M IN -> OUT"), map[string]model{"a": {run: early}, "b": {run: early}})
	if got, err := b.do(t.Context(), &infer.Request{}); err != nil || len(got) != 1 || got[0] != "OUT=b(a(x),x) ." {
		t.Errorf("got %q, %v", got, err)
	}
}

// Steps that don't need each other run at the same time.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := model{}
		b := newBench(t, steps("step a IN -> L", "step b IN -> R", "step c L R -> OUT"), map[string]model{})
		slow.run = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			time.Sleep(time.Second)
			return send(b.steps.echo(req, ""))
		}
		b.steps.models["a"], b.steps.models["b"] = slow, slow
		start := time.Now()
		got, err := b.do(t.Context(), &infer.Request{})
		if err != nil || got[0] != "OUT=c(a(x),b(x)) ." || time.Since(start) != time.Second {
			t.Errorf("got %q, %v after %v", got, err, time.Since(start))
		}
	})
}

// The first failure ends the others and is named; later ones are not told.
func TestFailures(t *testing.T) {
	fail := func(err error) model {
		return model{run: func(context.Context, *infer.Request, infer.SendFunc) error { return err }}
	}
	waits := model{run: func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
		<-ctx.Done()
		return infer.Errorf(infer.Cancelled, "cancelled")
	}}
	full := infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "Exceeds maximum queue size")
	for _, row := range []struct {
		name   string
		lines  []string
		models map[string]model
		want   string
		code   infer.Code
		reason infer.Reason
	}{
		{"full", []string{"step a IN -> M", "step b M -> OUT"}, map[string]model{"b": fail(full)},
			"in ensemble 'e', Exceeds maximum queue size (step 1, model 'b')", infer.Unavailable, infer.ReasonQueueFull},
		{"names its model", []string{"step a IN -> OUT"}, map[string]model{"a": fail(infer.Errorf(infer.InvalidArg, "bad input for model 'a'"))},
			"in ensemble 'e', bad input for model 'a'", infer.InvalidArg, ""},
		{"twice the same", []string{"step a IN -> M", "step a M -> OUT"}, map[string]model{"a": fail(infer.Errorf(infer.InvalidArg, "bad input for model 'a'"))},
			"in ensemble 'e', bad input for model 'a' (step 0, model 'a')", infer.InvalidArg, ""},
		{"others are cancelled", []string{"step a IN -> L", "step b IN -> R", "step c L R -> OUT"},
			map[string]model{"a": waits, "b": fail(errors.New("boom"))}, "in ensemble 'e', boom (step 1, model 'b')", infer.Internal, ""},
		{"not loaded", []string{"step a IN -> M", "step b M -> OUT"}, map[string]model{"b": {missing: true}},
			"in ensemble 'e', Request for unknown model: 'b' has no available versions", infer.Unavailable, infer.ReasonNotReady},
		{"no answer", []string{"step a IN -> OUT"}, map[string]model{"a": fail(nil)},
			"in ensemble 'e', [request id: <id_unknown>] model 'a' gave no answer", infer.Internal, ""},
		{"bug", []string{"step a IN -> OUT"}, map[string]model{"a": {run: func(context.Context, *infer.Request, infer.SendFunc) error { panic("x") }}},
			"in ensemble 'e', internal error (step 0, model 'a')", infer.Internal, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, steps(row.lines...), row.models)
			_, err := b.do(t.Context(), &infer.Request{})
			if err == nil || err.Error() != row.want || infer.CodeOf(err) != row.code || infer.ReasonOf(err) != row.reason {
				t.Errorf("got %v (%v, %q), want %s", err, infer.CodeOf(err), infer.ReasonOf(err), row.want)
			}
		})
	}
}

func TestTwoAnswersWhereOneIsAllowed(t *testing.T) {
	b := newBench(t, steps("step a IN -> OUT"), map[string]model{})
	b.steps.models["a"] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		return errors.Join(send(b.steps.echo(req, "")), send(b.steps.echo(req, "")))
	}}
	if _, err := b.do(t.Context(), &infer.Request{}); err == nil || !strings.Contains(err.Error(), "more than one response") {
		t.Errorf("got %v", err)
	}
}

func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := model{run: func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
			<-ctx.Done()
			return infer.Refusef(infer.Cancelled, infer.ReasonDeadline, "request cancelled")
		}}
		b := newBench(t, steps("step a IN -> L", "step b IN -> R", "step c L R -> OUT"), map[string]model{"a": wait, "b": wait})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.do(ctx, &infer.Request{})
		if infer.CodeOf(err) != infer.Cancelled || infer.ReasonOf(err) != infer.ReasonDeadline {
			t.Errorf("got %v", err)
		}
	})
}

// A slot of max_inflight_requests that is never free does not hold a caller that left.
func TestInflight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := steps("step a IN -> OUT")
		cfg.MaxInflight = 2
		var now, most atomic.Int64
		b := newBench(t, cfg, map[string]model{})
		b.steps.models["a"] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return send(b.steps.echo(req, ""))
		}}
		start := time.Now()
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if _, err := b.do(t.Context(), &infer.Request{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			time.Sleep(10 * time.Millisecond)
			if _, err := b.do(ctx, &infer.Request{}); infer.CodeOf(err) != infer.Cancelled {
				t.Errorf("caller with a deadline: %v", err)
			}
		})
		wg.Wait()
		if most.Load() != 2 || time.Since(start) != 3*time.Second {
			t.Errorf("%d at one time, done after %v", most.Load(), time.Since(start))
		}
	})
}

// Answers leave in order though the steps behind end in any; a slow caller holds the
// decoupled step back.
func TestDecoupled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := steps("step many IN -> M", "step work M -> OUT")
		cfg.MaxInflight = 4
		var made, most int
		sent := 0
		b := newBench(t, cfg, map[string]model{})
		rng := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		b.steps.models["many"] = model{decoupled: true, run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			for i := range 100 {
				resp := b.steps.echo(req, fmt.Sprint(i))
				resp.Final = false
				if err := send(resp); err != nil {
					return err
				}
				mu.Lock()
				made++
				most = max(most, made-sent)
				mu.Unlock()
			}
			return send(&infer.Response{Final: true})
		}}
		b.steps.models["work"] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			mu.Lock()
			d := time.Duration(rng.IntN(1000)) * time.Millisecond
			mu.Unlock()
			time.Sleep(d)
			return send(b.steps.echo(req, ""))
		}}
		var got []string
		req := &infer.Request{Memory: b.steps.buffer(), Rows: 1, Inputs: []infer.Tensor{{Name: "IN", Shape: []int64{1, 2}, Data: []byte("x")}}}
		err := b.Do(t.Context(), req, func(resp *infer.Response) error {
			time.Sleep(300 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			sent++
			if len(resp.Outputs) > 0 {
				got = append(got, string(resp.Outputs[0].Data))
			}
			if resp.Final != (len(got) == 100) {
				t.Errorf("answer %d: final %v", len(got), resp.Final)
			}
			resp.Memory.Release()
			return nil
		})
		req.Memory.Release()
		if err != nil || len(got) != 100 {
			t.Fatalf("%d answers, %v", len(got), err)
		}
		for i, text := range got {
			if text != fmt.Sprintf("work(many%d(x))", i) {
				t.Errorf("answer %d: %s", i, text)
			}
		}
		if most > 4*2+2 {
			t.Errorf("%d answers were under way at one time, want at most 10", most)
		}
	})
}

// A failure in the middle gives all memory back and ends the decoupled step.
func TestDecoupledFailures(t *testing.T) {
	for _, who := range []string{"work", "caller", "many"} {
		t.Run(who, func(t *testing.T) {
			b := newBench(t, steps("step many IN -> M", "step work M -> OUT"), map[string]model{})
			b.steps.models["many"] = model{decoupled: true, run: func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
				for i := range 1000 {
					if err := send(b.steps.echo(req, fmt.Sprint(i))); err != nil {
						return err
					}
					if who == "many" && i == 20 {
						return errors.New("boom")
					}
				}
				return nil
			}}
			b.steps.models["work"] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
				if who == "work" && strings.Contains(string(req.Inputs[0].Data), "many20(") {
					return errors.New("boom")
				}
				return send(b.steps.echo(req, ""))
			}}
			n := 0
			req := &infer.Request{Inputs: []infer.Tensor{{Name: "IN", Shape: []int64{1, 2}, Data: []byte("x")}}}
			err := b.Do(t.Context(), req, func(resp *infer.Response) error {
				resp.Memory.Release()
				if n++; who == "caller" && n == 20 {
					return errors.New("boom")
				}
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "boom") || n > 21 {
				t.Errorf("%v after %d answers", err, n)
			}
		})
	}
}

// An answer may name another sequence for the steps behind.
func TestSequences(t *testing.T) {
	b := newBench(t, steps("step a IN -> M", "step b M -> OUT"), map[string]model{})
	b.steps.models["a"] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		resp := b.steps.echo(req, "")
		resp.Params = infer.Params{{Name: "sequence_id", Value: infer.Value{Kind: infer.KindString, Str: "other"}},
			{Name: "sequence_end", Value: infer.Value{Kind: infer.KindBool, Bool: true}}}
		return send(resp)
	}}
	if _, err := b.do(t.Context(), &infer.Request{Correlation: infer.Correlation{ID: 7}, SequenceStart: true}); err != nil {
		t.Fatal(err)
	}
	if r := b.steps.seen[1]; r.Correlation != (infer.Correlation{Str: "other"}) || r.SequenceStart || !r.SequenceEnd {
		t.Errorf("the step behind got %+v", r)
	}
}

func TestFit(t *testing.T) {
	for _, row := range []struct {
		dims              []int64
		batching, batched bool
		shape, want       []int64
	}{
		{[]int64{2}, true, true, []int64{3, 2}, []int64{3, 2}},
		{[]int64{2}, true, false, []int64{2}, []int64{1, 2}},
		{[]int64{2}, true, false, []int64{3, 2}, []int64{3, 2}},
		{[]int64{2}, false, true, []int64{1, 2}, []int64{2}},
		{[]int64{2}, false, true, []int64{3, 2}, []int64{3, 2}},
		{[]int64{-1, 2}, false, true, []int64{1, 2}, []int64{1, 2}},
	} {
		if got := schedule.Fit(row.dims, row.batching, row.batched, row.shape); !slices.Equal(got, row.want) {
			t.Errorf("%+v: got %v", row, got)
		}
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, steps("step a IN -> OUT"), map[string]model{"a": {run: func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
			<-ctx.Done()
			return infer.Errorf(infer.Cancelled, "cancelled")
		}}})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.do(t.Context(), &infer.Request{}); infer.ReasonOf(err) != infer.ReasonStopping {
				t.Errorf("in flight: %v", err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Drain(ctx); infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("drain: %v", err)
		}
		wg.Wait()
		if _, err := b.do(t.Context(), &infer.Request{}); infer.ReasonOf(err) != infer.ReasonStopping {
			t.Errorf("afterwards: %v", err)
		}
		if err := b.Drain(t.Context()); err != nil {
			t.Errorf("drained twice: %v", err)
		}
	})
}

// A caller that takes no answers holds nobody up when the time to drain is over.
func TestDrainLeavesSlowCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, steps("step a IN -> OUT"), map[string]model{"a": {}})
		reads, done := make(chan struct{}), make(chan error, 1)
		go func() {
			req := &infer.Request{Rows: 1, Inputs: []infer.Tensor{{Name: "IN", Datatype: infer.Bytes, Shape: []int64{1, 2}, Data: []byte("x")}}}
			done <- b.Do(t.Context(), req, func(resp *infer.Response) error {
				<-reads
				resp.Memory.Release()
				return nil
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- b.Drain(ctx) }()
		select {
		case err := <-drained:
			if infer.CodeOf(err) != infer.Cancelled {
				t.Errorf("drain: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("drain waits for a caller that reads nothing")
		}
		close(reads)
		if err := <-done; err != nil {
			t.Errorf("the answer: %v", err)
		}
	})
}

// The sequence batcher numbers an iterative request that has no ID, while answers of it
// are on their way: that is nothing to the steps behind.
func TestNumbersOfAStepStayThere(t *testing.T) {
	b := newBench(t, steps("step a IN -> X", "step c X -> OUT"), nil)
	b.steps.models = map[string]model{"c": {}, "a": {decoupled: true, run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		req.Correlation.ID, req.SequenceStart = 7, true
		return send(b.steps.echo(req, ""))
	}}}
	if _, err := b.do(t.Context(), &infer.Request{}); err != nil {
		t.Fatal(err)
	}
	if last := b.steps.seen[len(b.steps.seen)-1]; last.Model != "c" || !last.Correlation.IsZero() || last.SequenceStart {
		t.Errorf("%s has %+v and START %v", last.Model, last.Correlation, last.SequenceStart)
	}
}

// Who may share answers with whom counts for the steps too.
func TestTenant(t *testing.T) {
	b := newBench(t, steps("step a IN -> OUT"), map[string]model{"a": {}})
	if _, err := b.do(t.Context(), &infer.Request{Tenant: "blue"}); err != nil {
		t.Fatal(err)
	}
	if got := b.steps.seen[0].Tenant; got != "blue" {
		t.Errorf("the step's tenant is %q", got)
	}
}

func TestDepth(t *testing.T) {
	b := newBench(t, steps("step a IN -> OUT"), map[string]model{})
	b.steps.models["a"] = model{run: func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
		inner := *req // the ensemble itself, as a reload could bring about
		inner.Inputs = []infer.Tensor{{Name: "IN", Shape: []int64{1, 2}}}
		return b.Do(ctx, &inner, send)
	}}
	if _, err := b.do(t.Context(), &infer.Request{}); err == nil || !strings.Contains(err.Error(), "nested more than 32 deep") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkChain is what an ensemble of two steps costs beside its steps.
func BenchmarkChain(b *testing.B) {
	s := newBench(b, steps("step a IN -> M", "step b M -> OUT"), map[string]model{})
	out := infer.Tensor{Datatype: infer.FP32, Shape: []int64{1, 2}, Data: make([]byte, 8)}
	for _, name := range []string{"a", "b"} {
		s.steps.models[name] = model{run: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			resp := &infer.Response{Outputs: []infer.Tensor{out}, Final: true}
			resp.Outputs[0].Name = req.Outputs[0].Name
			return send(resp)
		}}
	}
	ctx := b.Context()
	in := []infer.Tensor{{Name: "IN", Datatype: infer.FP32, Shape: []int64{1, 2}, Data: make([]byte, 8)}}
	b.ReportAllocs()
	for b.Loop() {
		s.steps.seen = s.steps.seen[:0]
		if err := s.Do(ctx, &infer.Request{Inputs: in, Rows: 1}, func(*infer.Response) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
