package drive_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// sink is a Sink that tells a goroutine of the end.
type sink struct {
	t       *testing.T
	send    infer.SendFunc
	large   bool
	inside  atomic.Bool // one call at a time
	ended   atomic.Bool
	flushed atomic.Int64
	done    chan error
}

func newSink(t *testing.T, send infer.SendFunc) *sink {
	return &sink{t: t, send: send, done: make(chan error, 1)}
}

func (s *sink) Large(*infer.Response) bool { return s.large }

func (s *sink) Send(r *infer.Response) error {
	if s.inside.Swap(true) || s.ended.Load() {
		s.t.Error("Send during another call, or after Done")
	}
	defer s.inside.Store(false)
	return s.send(r)
}

func (s *sink) Done(err error) infer.Flusher {
	if s.inside.Load() || s.ended.Swap(true) {
		s.t.Error("Done during Send, or twice")
	}
	s.done <- err
	return s
}

func (s *sink) Flush() { s.flushed.Add(1) }

// do is Do, or Start on one kind of context or the other, at random: both must be the
// same to everybody.
func do(ctx context.Context, t *testing.T, s schedule.Scheduler, req *infer.Request, send infer.SendFunc) error {
	way := rand.IntN(4)
	if way > 0 {
		to := newSink(t, send)
		to.large = way == 3
		if way == 2 {
			own, outer := &caused{outer: ctx}, ctx
			stop := context.AfterFunc(outer, func() { own.End(outer.Err()) })
			defer stop()
			defer own.End(context.Canceled)
			ctx = own
		}
		if s.Start(ctx, req, to) {
			return <-to.done
		}
	}
	return s.Do(ctx, req, send)
}

// caused is a lifetime.Context that ends for another's reason.
type caused struct {
	lifetime.Context
	outer context.Context
}

func (c *caused) Value(key any) any { return c.outer.Value(key) }

func startable(t *testing.T, cfg dynamic.Config, f *fake) (*dynamic.Scheduler, *memory) {
	t.Helper()
	mem := newMemory(1 << 20)
	return batcher(t, cfg, deps(mem, nil, f)), mem
}

// All answers of a batch are made before the first is flushed.
func TestStartGathers(t *testing.T) {
	f := &fake{}
	s, mem := startable(t, dynamic.Config{}, f)
	var sinks []*sink
	early := 0
	for _, id := range []string{"z", "a", "b", "c"} {
		to := newSink(t, func(r *infer.Response) error {
			for _, other := range sinks[1:] {
				early += int(other.flushed.Load())
			}
			r.Memory.Release()
			return nil
		})
		sinks = append(sinks, to)
		if !s.Start(t.Context(), request(id, 1), to) {
			t.Fatal("not started")
		}
	}
	f.answer(t)
	f.answer(t)
	for i, to := range sinks {
		select {
		case err := <-to.done:
			check(t, "error", err, nil)
		default:
			t.Errorf("request %d has no answer", i)
		}
		check(t, "flushes", to.flushed.Load(), 1)
	}
	check(t, "flushed before the last answer", early, 0)
	check(t, "memory", mem.inUse(), 0)
}

// A caller who leaves takes his request out of the queue, or has its instance told, on
// the goroutine that ends his context.
func TestStartedCallersLeave(t *testing.T) {
	f := &fake{}
	s, mem := startable(t, dynamic.Config{}, f)
	var ends [3]lifetime.Context
	var sinks [3]*sink
	for i, id := range []string{"a", "b", "c"} {
		sinks[i] = newSink(t, func(r *infer.Response) error { r.Memory.Release(); return nil })
		s.Start(&ends[i], request(id, 1), sinks[i])
	}
	check(t, "pending", s.Pending(), 2)
	ends[1].End(context.Canceled)
	check(t, "pending after one has left", s.Pending(), 1)
	check(t, "code", infer.CodeOf(<-sinks[1].done), infer.Cancelled)
	ends[0].End(context.DeadlineExceeded)
	check(t, "reason", infer.ReasonOf(<-sinks[0].done), infer.ReasonDeadline)
	check(t, "cancelled", f.cancelled(), "[a]")
	f.answer(t)
	f.answer(t)
	check(t, "c", <-sinks[2].done, nil)
	check(t, "batches", f.ids(), "[a c]")
	check(t, "memory", mem.inUse(), 0)
	ends[2].End(context.Canceled) // nobody hears it
	gone := newSink(t, nil)
	check(t, "started", s.Start(&ends[0], request("d", 1), gone), true)
	check(t, "code of one who never came", infer.CodeOf(<-gone.done), infer.Cancelled)
}

// Refusals come at once, timeouts and a model's end from elsewhere.
func TestStartedEndsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s, mem := startable(t, dynamic.Config{Policy: schedule.QueuePolicy{Set: true, MaxSize: 1, Timeout: time.Millisecond}}, f)
		var sinks []*sink
		for range 3 {
			to := newSink(t, func(*infer.Response) error { return errors.New("no") })
			sinks = append(sinks, to)
			s.Start(t.Context(), request("a", 1), to)
		}
		check(t, "beyond the limit", infer.ReasonOf(<-sinks[2].done), infer.ReasonQueueFull)
		check(t, "too late", infer.ReasonOf(<-sinks[1].done), infer.ReasonQueueTimeout)
		f.answer(t)
		check(t, "unsendable", (<-sinks[0].done).Error(), "no")
		ctx, cancel := context.WithCancel(t.Context())
		last := newSink(t, nil)
		s.Start(t.Context(), request("b", 1), last)
		cancel()
		if s.Drain(ctx) == nil {
			t.Error("drained with a request in flight")
		}
		check(t, "the model's end", infer.ReasonOf(<-last.done), infer.ReasonStopping)
		f.answer(t)
		check(t, "memory", mem.inUse(), 0)
	})
}

// What keeps an order is not started.
func TestOrderedIsNotStarted(t *testing.T) {
	s, _ := startable(t, dynamic.Config{PreserveOrdering: true}, &fake{})
	check(t, "started", s.Start(t.Context(), request("a", 1), newSink(t, nil)), false)
}
