package sequence_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// adder is an instance whose model adds: SUM and NEW are STATE + VALUE, row by row. It
// answers after a while, from another goroutine, and now and then loses its worker.
type adder struct {
	t     *testing.T
	s     *atomic.Pointer[sequence.Scheduler]
	index int
	loses int  // one of so many batches; 0: none
	each  bool // it answers each request
	again int  // executions of a request
	wg    *sync.WaitGroup
	busy  atomic.Bool
	batch atomic.Int64
	nulls atomic.Int64
	count map[uint64]int
}

func (a *adder) Cancel(*infer.Batch, int) {}
func (*adder) Occupied(uint64) bool       { return false }
func (*adder) Place() (string, string)    { return "", "" }

// Execute also frees the batch now and then, which changes nothing: a sequence's next request
// needs the last result.
func (a *adder) Execute(b *infer.Batch) {
	if a.busy.Swap(true) {
		a.t.Error("two batches on one instance")
	}
	a.wg.Go(func() {
		if rand.IntN(3) == 0 {
			b.Deliver(&infer.Result{More: true, Free: true})
		}
		time.Sleep(time.Duration(rand.IntN(40)) * time.Microsecond)
		if a.loses > 0 && rand.IntN(a.loses) == 0 {
			a.busy.Store(false)
			b.Deliver(&infer.Result{Err: infer.ErrWorkerLost})
			a.s.Load().InstanceDown(a.index)
			time.Sleep(50 * time.Microsecond)
			a.s.Load().InstanceUp(a.index)
			return
		}
		res := a.run(b)
		a.busy.Store(false)
		b.Deliver(res)
	})
}

func (a *adder) run(b *infer.Batch) *infer.Result {
	in := map[string][]byte{}
	for _, t := range b.Inputs {
		in[t.Name] = bytes.Join(t.Segments, nil)
		if t.Shape[0] != int64(b.Rows) {
			a.t.Errorf("%s has shape %v for %d rows", t.Name, t.Shape, b.Rows)
		}
	}
	a.batch.Add(1)
	n := b.Rows
	sum := make([]byte, 4*n)
	for i, r := range b.Requests {
		v := binary.LittleEndian.Uint32(in["VALUE"][4*i:]) + binary.LittleEndian.Uint32(in["STATE"][4*i:])
		binary.LittleEndian.PutUint32(sum[4*i:], v)
		ready, id := in["READY"][i], binary.LittleEndian.Uint64(in["ID"][8*i:])
		if (ready == 0) != r.Correlation.IsZero() || id != r.Correlation.ID {
			a.t.Errorf("row %d: READY %d and ID %d of sequence %v", i, ready, id, r.Correlation)
		}
		if ready == 0 {
			a.nulls.Add(1)
		}
	}
	shape := []int64{int64(n), 1}
	res := &infer.Result{}
	if !a.each {
		res.Outputs = []infer.Tensor{{Name: "SUM", Datatype: infer.Int32, Shape: shape, Data: sum},
			{Name: "NEW", Datatype: infer.Int32, Shape: shape, Data: sum}}
		return res
	}
	for i, r := range b.Requests {
		one := []infer.Tensor{{Name: "NEW", Datatype: infer.Int32, Shape: []int64{1, 1}, Data: sum[4*i : 4*i+4]}}
		a.count[r.Correlation.ID]++
		repeat := a.again > 0 && a.count[r.Correlation.ID]%a.again != 0
		if !repeat {
			one = append(one, infer.Tensor{Name: "SUM", Datatype: infer.Int32, Shape: []int64{1, 1}, Data: sum[4*i : 4*i+4]})
		}
		res.Responses = append(res.Responses, infer.RequestResult{Index: i, Repeat: repeat, Response: &infer.Response{Outputs: one, Final: !repeat}})
	}
	return res
}

// memory is a schedule.Memory that knows what is out.
type memory struct {
	mu  sync.Mutex
	out map[*byte]int
}

func (m *memory) Alloc(n int64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := make([]byte, n)
	m.out[&b[0]] = len(b)
	return b, nil
}

func (m *memory) Free(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.out[&b[0]] != len(b) {
		panic("freed what was not allocated")
	}
	delete(m.out, &b[0])
}

func (m *memory) Holds([]byte) bool { return false }

type counts struct{ requests, rows, queued atomic.Int64 }

func (c *counts) Executed(requests, rows int, _ infer.ComputeTimes) {
	c.requests.Add(int64(requests))
	c.rows.Add(int64(rows))
}

func (c *counts) Queued(delta int) { c.queued.Add(int64(delta)) }

func config() sequence.Config {
	return sequence.Config{Model: schedule.Model{Name: "m", Version: 1, MaxBatchSize: 4, Inputs: []string{"VALUE"}},
		Controls: []sequence.Control{{Name: "READY", Kind: sequence.Ready, Datatype: infer.Bool, False: []byte{0}, True: []byte{1}},
			{Name: "ID", Kind: sequence.CorrelationID, Datatype: infer.Uint64}},
		States: []sequence.State{{Input: "STATE", Output: "NEW", Datatype: infer.Int32, Dims: []int64{1}}}}
}

// begin makes a scheduler over adders.
func begin(t *testing.T, cfg sequence.Config, obs schedule.Observer, mem schedule.Memory, adders ...*adder) (*sequence.Scheduler, *sync.WaitGroup) {
	t.Helper()
	return beginWith(t, cfg, schedule.Deps{Memory: mem, Observer: obs, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
		Log: slog.New(slog.DiscardHandler)}, adders...)
}

func beginWith(t *testing.T, cfg sequence.Config, d schedule.Deps, adders ...*adder) (*sequence.Scheduler, *sync.WaitGroup) {
	t.Helper()
	s, wg := &atomic.Pointer[sequence.Scheduler]{}, &sync.WaitGroup{}
	for i, a := range adders {
		a.t, a.s, a.index, a.wg, a.count = t, s, i, wg, map[uint64]int{}
		d.Executors = append(d.Executors, a)
	}
	made, err := sequence.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	s.Store(made)
	return made, wg
}

func request(id uint64, value int, start, end bool) *infer.Request {
	return &infer.Request{ID: fmt.Sprint(id, "/", value), Rows: 1, Correlation: infer.Correlation{ID: id}, SequenceStart: start, SequenceEnd: end,
		Inputs: []infer.Tensor{{Name: "VALUE", Datatype: infer.Int32, Shape: []int64{1, 1},
			Data: binary.LittleEndian.AppendUint32(nil, uint32(value))}}}
}

// do gives the sum that comes back.
func do(ctx context.Context, s *sequence.Scheduler, req *infer.Request) (sum, answers int, err error) {
	err = s.Do(ctx, req, func(r *infer.Response) error {
		answers++
		if len(r.Outputs) != 1 || r.Outputs[0].Name != "SUM" {
			return fmt.Errorf("outputs %v", r.Outputs)
		}
		sum = int(int32(binary.LittleEndian.Uint32(r.Outputs[0].Data)))
		r.Memory.Release()
		return nil
	})
	return sum, answers, err
}

// Every answer is right with workers that end and callers that leave in the middle.
func TestStateUnderFaults(t *testing.T) {
	for _, oldest := range []bool{false, true} {
		for _, each := range []bool{false, true} {
			t.Run(fmt.Sprintf("oldest=%v/each=%v", oldest, each), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { underFaults(t, oldest, each) })
			})
		}
	}
}

func underFaults(t *testing.T, oldest, each bool) {
	cfg := config()
	cfg.Idle = 2 * time.Millisecond
	if oldest {
		cfg.Oldest = &sequence.Oldest{Candidates: 8, MaxQueueDelay: 20 * time.Microsecond, Preferred: []int{2, 4}}
	}
	mem, seen := &memory{out: map[*byte]int{}}, &counts{}
	adders := []*adder{{loses: 40, each: each}, {loses: 40, each: each}}
	s, running := begin(t, cfg, seen, mem, adders...)
	var right, lost, nulls atomic.Int64
	var wg sync.WaitGroup
	for caller := range 30 {
		wg.Go(func() {
			for k := range 12 {
				oneSequence(t, s, uint64(1+caller*100+k), &right, &lost)
			}
		})
	}
	wg.Wait()
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	running.Wait()
	for _, a := range adders {
		nulls.Add(a.nulls.Load())
	}
	if len(mem.out) != 0 {
		t.Errorf("%d blocks are still out", len(mem.out))
	}
	if seen.queued.Load() != 0 || seen.rows.Load() != seen.requests.Load() {
		t.Errorf("%d queued, %d requests, %d rows", seen.queued.Load(), seen.requests.Load(), seen.rows.Load())
	}
	if !oldest && nulls.Load() == 0 {
		t.Error("no null request")
	}
	if right.Load() < 1000 || lost.Load() > 60 {
		t.Errorf("%d right answers, %d lost", right.Load(), lost.Load())
	}
}

// oneSequence walks five steps, or leaves in the middle.
func oneSequence(t *testing.T, s *sequence.Scheduler, id uint64, right, lost *atomic.Int64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sum := 0
	for step := range 5 {
		if step > 2 && rand.IntN(20) == 0 {
			return // abandoned
		}
		if rand.IntN(40) == 0 {
			stop := time.AfterFunc(time.Duration(rand.IntN(50))*time.Microsecond, cancel)
			defer stop.Stop()
		}
		v := rand.IntN(100)
		got, answers, err := do(ctx, s, request(id, v, step == 0, step == 4))
		switch {
		case errors.Is(err, infer.ErrWorkerLost): // twice
			lost.Add(1)
			return
		case err != nil && infer.CodeOf(err) == infer.Cancelled:
			return
		case err != nil:
			t.Errorf("sequence %d: %v", id, err)
			return
		}
		sum += v
		if got != sum || answers != 1 {
			t.Errorf("sequence %d, step %d: got %d in %d answers, want %d", id, step, got, answers, sum)
		}
		right.Add(1)
	}
}

func TestIterative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Iterative = true
		seen := &counts{}
		s, running := begin(t, cfg, seen, nil, &adder{each: true, again: 3})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				got, answers, err := do(t.Context(), s, request(0, 5, false, false))
				if got != 15 || answers != 1 || err != nil {
					t.Errorf("got %d in %d answers, %v; want 15, the state of three executions", got, answers, err)
				}
			})
		}
		wg.Wait()
		running.Wait()
		if seen.requests.Load() != 60 {
			t.Errorf("%d executions, want 60", seen.requests.Load())
		}
	})
}

func TestIdleEndsASequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Idle = 10 * time.Millisecond
		s, running := begin(t, cfg, nil, nil, &adder{})
		for _, wait := range []time.Duration{0, 9 * time.Millisecond, 9 * time.Millisecond} {
			time.Sleep(wait)
			if _, _, err := do(t.Context(), s, request(1, 1, wait == 0, false)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(11 * time.Millisecond)
		_, _, err := do(t.Context(), s, request(1, 1, false, false))
		if infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("after the idle time: %v", err)
		}
		running.Wait()
	})
}

func TestStatesThatDontFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.States[0].Datatype = infer.FP32
		s, running := begin(t, cfg, nil, nil, &adder{})
		_, _, err := do(t.Context(), s, request(1, 1, true, true))
		if want := "model 'm': state output 'NEW' is INT32, its configuration says FP32"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		running.Wait()
	})
	cfg := config()
	cfg.States[0].Initial, cfg.States[0].InitialDims = make([]byte, 3), []int64{1}
	if _, err := sequence.New(cfg, schedule.Deps{}); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("an initial state of 3 bytes: %v", err)
	}
}

// BenchmarkStep is one request of a sequence with two controls and one state, beside the
// same request through the default scheduler.
func BenchmarkStep(b *testing.B) {
	d := schedule.Deps{Executors: []infer.Executor{instant{}}, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64), Log: slog.New(slog.DiscardHandler),
		Memory: &reused{block: make([]byte, 4096)}}
	s, err := sequence.New(config(), d)
	if err != nil {
		b.Fatal(err)
	}
	plain, err := direct.New(direct.Config{Model: config().Model}, d)
	if err != nil {
		b.Fatal(err)
	}
	for name, s := range map[string]schedule.Scheduler{"sequence": s, "default": plain} {
		b.Run(name, func(b *testing.B) {
			ctx, req := b.Context(), request(1, 1, true, false)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Do(ctx, req, func(*infer.Response) error { return nil }); err != nil {
					b.Fatal(err)
				}
				req.SequenceStart = false
			}
		})
	}
}

// instant answers at once, from another goroutine.
type instant struct{}

func (instant) Cancel(*infer.Batch, int) {}
func (instant) Occupied(uint64) bool     { return false }
func (instant) Place() (string, string)  { return "", "" }

func (instant) Execute(b *infer.Batch) {
	data := []byte{1, 2, 3, 4}
	res := &infer.Result{Outputs: []infer.Tensor{{Name: "SUM", Datatype: infer.Int32, Shape: []int64{1, 1}, Data: data},
		{Name: "NEW", Datatype: infer.Int32, Shape: []int64{1, 1}, Data: data}}}
	go b.Deliver(res)
}

// reused is a memory with one block.
type reused struct{ block []byte }

func (m *reused) Alloc(n int64) ([]byte, error) { return m.block[:n], nil }
func (m *reused) Free([]byte)                   {}
func (m *reused) Holds([]byte) bool             { return false }
