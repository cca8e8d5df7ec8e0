package sequence_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/drive"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/gateway/schedule/sequence"
	"github.com/sluice-serve/sluice/infer"
)

// cracked is a core that panics before or after what it does, now and then.
type cracked struct {
	*sequence.Core
	odds *atomic.Int64 // one call in so many; 0: none
}

func (c cracked) may() {
	if n := c.odds.Load(); n > 0 && rand.Int64N(n) == 0 {
		panic("cracked")
	}
}

func (c cracked) Full(e *queue.Entry) bool      { c.may(); return c.Core.Full(e) }
func (c cracked) Admit(e *queue.Entry) error    { c.may(); return c.Core.Admit(e) }
func (c cracked) Add(e *queue.Entry)            { c.may(); c.Core.Add(e); c.may() }
func (c cracked) Remove(e *queue.Entry)         { c.may(); c.Core.Remove(e); c.may() }
func (c cracked) Verdict(e *queue.Entry) error  { c.may(); return c.Core.Verdict(e) }
func (c cracked) Expire(now int64) *queue.Entry { defer c.may(); return c.Core.Expire(now) }
func (c cracked) Again(e *queue.Entry) bool     { c.may(); defer c.may(); return c.Core.Again(e) }
func (c cracked) Repeat(e *queue.Entry) bool    { c.may(); defer c.may(); return c.Core.Repeat(e) }
func (c cracked) Down(i int)                    { c.may(); c.Core.Down(i); c.may() }
func (c cracked) Next(now int64, b []*queue.Entry) ([]*queue.Entry, int) {
	c.may()
	defer c.may()
	return c.Core.Next(now, b)
}
func (c cracked) Done(i int, b []*queue.Entry) { c.may(); c.Core.Done(i, b); c.may() }
func (c cracked) Lost(i int, life uint64, b []*queue.Entry) {
	c.may()
	c.Core.Lost(i, life, b)
	c.may()
}

// Any call of a sequence batcher's core may panic, at any time: every request ends once, with
// its own sum or an error, what was held is given back, and afterwards all is served.
func TestPanicsOfCores(t *testing.T) {
	for name, set := range map[string]func(*sequence.Config){
		"direct": func(c *sequence.Config) {
			c.Direct = sequence.Direct{Utilization: 0.5, MaxQueueDelay: 30 * time.Microsecond}
		},
		"oldest":  func(c *sequence.Config) { c.Oldest = &sequence.Oldest{Candidates: 6} },
		"ordered": func(c *sequence.Config) { c.Oldest = &sequence.Oldest{Candidates: 3, PreserveOrdering: true} },
		"again":   func(c *sequence.Config) { c.Iterative = true },
		"again, oldest": func(c *sequence.Config) {
			c.Iterative, c.Oldest = true, &sequence.Oldest{Candidates: 6, PreserveOrdering: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				synctest.Test(t, func(t *testing.T) { testCracked(t, set) })
			}
		})
	}
}

func testCracked(t *testing.T, set func(*sequence.Config)) {
	cfg := config()
	set(&cfg)
	cfg.Idle = 300 * time.Microsecond
	mem, seen, held := &memory{out: map[*byte]int{}}, &counts{}, &heldSequences{}
	var odds, faults atomic.Int64
	at, running := &atomic.Pointer[sequence.Scheduler]{}, &sync.WaitGroup{}
	d := schedule.Deps{Memory: mem, Observer: seen, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
		Log: slog.New(slog.DiscardHandler), Sequences: schedule.SequenceRules{Limits: held}}
	for i := range 2 {
		a := &adder{t: t, s: at, index: i, wg: running, count: map[uint64]int{}, loses: 30, each: cfg.Iterative || rand.IntN(2) == 0}
		if cfg.Iterative {
			a.again = 3
		}
		d.Executors = append(d.Executors, a)
	}
	s, err := sequence.NewWith(cfg, d, func(c *sequence.Core) drive.Core {
		faults.Add(1)
		return cracked{c, &odds}
	})
	if err != nil {
		t.Fatal(err)
	}
	at.Store(s)
	odds.Store(80)
	var asked, ended, refs atomic.Int64
	var wg sync.WaitGroup
	for caller := range 16 {
		wg.Go(func() {
			for k := range 10 {
				sums(t, s, uint64(1+caller*100+k), cfg.Iterative, true, &asked, &ended, &refs)
			}
		})
	}
	wg.Wait()
	odds.Store(0)
	running.Wait()
	synctest.Wait()
	for id := range uint64(5) {
		sums(t, s, 9000+id, cfg.Iterative, false, &asked, &ended, &refs)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	running.Wait()
	synctest.Wait()
	if ended.Load() != asked.Load() || refs.Load() != asked.Load() || faults.Load() < 2 {
		t.Errorf("%d requests, %d ends, %d references back, %d cores", asked.Load(), ended.Load(), refs.Load(), faults.Load())
	}
	if held.now.Load() != 0 || (held.all.Load() == 0) != cfg.Iterative {
		t.Errorf("%d of %d sequences are counted though nothing is left", held.now.Load(), held.all.Load())
	}
	if seen.queued.Load() != 0 || len(mem.out) != 0 || s.Busy() != 0 || s.Ready() != 2 {
		t.Errorf("%d queued, %d blocks out, %d busy, %d ready", seen.queued.Load(), len(mem.out), s.Busy(), s.Ready())
	}
}

// sums asks the steps of one sequence, of an iterative model one, and checks the sums.
func sums(t *testing.T, s *sequence.Scheduler, id uint64, iterative, faults bool, asked, ended, refs *atomic.Int64) {
	for step := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		stop := func() bool { return true }
		if faults && rand.IntN(8) == 0 {
			stop = time.AfterFunc(time.Duration(rand.IntN(80))*time.Microsecond, cancel).Stop
		}
		req := request(id, step, step == 0 && !iterative, step == 3 && !iterative)
		if iterative {
			req.Correlation.ID = 0
		}
		req.Memory = infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) { refs.Add(1) })
		asked.Add(1)
		sum, answers, err := plain(ctx, s, req)
		ended.Add(1)
		stop()
		cancel()
		req.Memory.Release()
		switch {
		case err == nil && answers > 0 && (iterative || sum == step*(step+1)/2):
			continue
		case err == nil || answers > 1 && !iterative:
			t.Errorf("%s: %d answers, sum %d, %v", req.ID, answers, sum, err)
		case step > 0 && infer.CodeOf(err) == infer.InvalidArg: // its sequence is not known any more
		case errors.Is(err, infer.ErrWorkerLost):
		case !faults:
			t.Errorf("afterwards: %s: %v", req.ID, err)
		case infer.CodeOf(err) == infer.Cancelled, infer.CodeOf(err) == infer.Unavailable, infer.CodeOf(err) == infer.Internal:
		default:
			t.Errorf("%s: %v", req.ID, err)
		}
		return
	}
}

// plain gives the sum of the final answer; answers that end without one are an error of the
// scheduler's.
func plain(ctx context.Context, s *sequence.Scheduler, req *infer.Request) (sum, answers int, err error) {
	final := false
	err = s.Do(ctx, req, func(r *infer.Response) error {
		defer r.Memory.Release()
		answers++
		if final = r.Final; final && len(r.Outputs) == 1 && r.Outputs[0].Name == "SUM" {
			sum = int(int32(r.Outputs[0].Data[0]))
		} else if final {
			sum, answers = -1, 0
		}
		return nil
	})
	if err == nil && !final {
		answers = 0
	}
	return sum, answers, err
}

// partly is an instance of an iterative model that answers a part and asks to go on.
type partly struct{ batches chan *infer.Batch }

func (p partly) Execute(b *infer.Batch)   { p.batches <- b }
func (p partly) Cancel(*infer.Batch, int) {}
func (partly) Occupied(uint64) bool       { return false }
func (partly) Place() (string, string)    { return "", "" }

// An iterative request that can't go on, since its sequence has ended with its instance,
// hears of it: what it was answered so far is not the whole.
func TestEndedWhileIterating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := partly{make(chan *infer.Batch, 1)}
		cfg := sequence.Config{Model: schedule.Model{Name: "m", Version: 1, Decoupled: true}, Iterative: true}
		s, err := sequence.New(cfg, schedule.Deps{Executors: []infer.Executor{p}, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan error, 1)
		var parts atomic.Int64
		go func() {
			req := request(0, 1, false, false)
			heard <- s.Do(t.Context(), req, func(*infer.Response) error { parts.Add(1); return nil })
		}()
		b := <-p.batches
		s.InstanceDown(0)
		b.Deliver(&infer.Result{Responses: []infer.RequestResult{{Index: 0, Repeat: true, Response: &infer.Response{}}}})
		if err := <-heard; infer.CodeOf(err) != infer.Unavailable || infer.ReasonOf(err) != infer.ReasonWorkerLost || parts.Load() != 1 {
			t.Errorf("%d parts, %v", parts.Load(), err)
		}
		if err := s.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
