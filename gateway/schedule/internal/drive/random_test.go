package drive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// wild is an instance that answers after a while, from another goroutine, and now and
// then loses its worker. It checks every batch that it gets.
type wild struct {
	t      *testing.T
	s      *atomic.Pointer[dynamic.Scheduler]
	index  int
	max    int
	busy   atomic.Bool
	seen   *sync.Map // request → times it was executed successfully
	faults bool
	wg     *sync.WaitGroup
}

func (w *wild) Cancel(*infer.Batch, int) {}
func (*wild) Occupied(uint64) bool       { return false }
func (*wild) Place() (string, string)    { return "", "" }

func (w *wild) Execute(b *infer.Batch) {
	if w.busy.Swap(true) {
		w.t.Error("two batches on one instance")
	}
	w.wg.Add(1)
	go w.run(b)
}

func (w *wild) run(b *infer.Batch) {
	defer w.wg.Done()
	w.inspect(b)
	free := rand.IntN(3) == 0
	if free {
		w.busy.Store(false)
		b.Deliver(&infer.Result{More: true, Free: true})
	}
	if n := rand.IntN(50); n > 0 {
		time.Sleep(time.Duration(n) * time.Microsecond)
	}
	if w.faults && rand.IntN(40) == 0 {
		s := w.s.Load()
		if !free {
			w.busy.Store(false)
		}
		b.Deliver(&infer.Result{Err: infer.ErrWorkerLost})
		s.InstanceDown(w.index)
		time.Sleep(100 * time.Microsecond)
		s.InstanceUp(w.index)
		return
	}
	for _, r := range b.Requests {
		if _, twice := w.seen.LoadOrStore(r, true); twice {
			w.t.Errorf("request %s was answered twice", r.ID)
		}
	}
	res := echo(b)
	if !free {
		w.busy.Store(false)
	}
	b.Deliver(res)
}

func (w *wild) inspect(b *infer.Batch) {
	rows := 0
	first := b.Requests[0].Inputs
	for _, r := range b.Requests {
		rows += r.Rows
		for i := range r.Inputs {
			if r.Inputs[i].Shape[1] != first[i].Shape[1] || len(r.Inputs) != len(first) {
				w.t.Errorf("shapes mixed: %v and %v", r.Inputs, first)
			}
		}
	}
	if rows > w.max || rows != b.Rows {
		w.t.Errorf("batch of %d rows says %d, the most is %d", rows, b.Rows, w.max)
	}
	for i, in := range b.Inputs {
		var want []byte
		for _, r := range b.Requests {
			want = append(want, r.Inputs[i].Data...)
		}
		if got := bytes.Join(in.Segments, nil); !bytes.Equal(got, want) || in.Shape[0] != int64(rows) {
			w.t.Errorf("input %s: got %q of %v, want %q", in.Name, got, in.Shape, want)
		}
	}
}

func randomRequest(id int) *infer.Request {
	r := request(fmt.Sprintf("%c%d", 'a'+id%26, id), 1+rand.IntN(3))
	r.Priority = uint64(rand.IntN(4)) // where there are levels
	switch rand.IntN(8) {
	case 0: // another shape
		r.Inputs[0].Shape[1] = 1
		r.Inputs[0].Data = r.Inputs[0].Data[:4*r.Rows]
	case 1: // an optional input left out
		r.Inputs = r.Inputs[:1]
	case 2: // rows too large for a slot
		r.Inputs[0].Shape[1] = 8 << 10
		r.Inputs[0].Data = bytes.Repeat([]byte{byte(id)}, 32<<10*r.Rows)
	}
	return r
}

func TestRandomSchedules(t *testing.T) {
	for name, cfg := range map[string]dynamic.Config{
		"greedy":   {},
		"delay":    {MaxQueueDelay: 50 * time.Microsecond},
		"ordered":  {PreserveOrdering: true},
		"all":      {PreserveOrdering: true, Preferred: []int{3, 6}, MaxQueueDelay: 30 * time.Microsecond},
		"timeouts": {Policy: schedule.QueuePolicy{Timeout: 100 * time.Microsecond}},
		"levels": {MaxQueueDelay: 30 * time.Microsecond, Policy: schedule.QueuePolicy{Timeout: 200 * time.Microsecond},
			Levels: schedule.Levels{Count: 3, Default: 2, Fair: 4, Own: map[uint64]*schedule.QueuePolicy{
				3: {Set: true, Timeout: 60 * time.Microsecond, TimeoutAction: schedule.Delay}}}},
	} {
		for _, faults := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/faults=%v", name, faults), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { randomSchedule(t, cfg, faults) })
			})
		}
	}
}

func randomSchedule(t *testing.T, cfg dynamic.Config, faults bool) {
	const callers, each = 24, 40
	mem, seen := newMemory(64<<20), &counts{}
	var (
		s        atomic.Pointer[dynamic.Scheduler]
		answered sync.Map
		running  sync.WaitGroup
		execs    []infer.Executor
	)
	for i := range 3 {
		execs = append(execs, &wild{t: t, s: &s, index: i, max: 8, seen: &answered, faults: faults, wg: &running})
	}
	d := deps(mem, seen, execs...)
	s.Store(batcher(t, cfg, d))
	var (
		wg sync.WaitGroup
		ok atomic.Int64
	)
	for c := range callers {
		wg.Go(func() {
			for k := range each {
				if oneRandom(t, s.Load(), c*each+k, faults) {
					ok.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Load().Drain(t.Context()); err != nil {
		t.Error(err)
	}
	running.Wait()
	check(t, "memory in use", mem.inUse(), 0)
	check(t, "queued", seen.queued.Load(), 0)
	if ok.Load() < callers*each/4 {
		t.Errorf("only %d of %d requests succeeded", ok.Load(), callers*each)
	}
	t.Logf("%d of %d succeeded, %d batches, %d rows", ok.Load(), callers*each, seen.batches.Load(), seen.rows.Load())
}

func oneRandom(t *testing.T, s schedule.Scheduler, id int, faults bool) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := randomRequest(id)
	if rand.IntN(5) == 0 {
		stop := time.AfterFunc(time.Duration(rand.IntN(300))*time.Microsecond, cancel)
		defer stop.Stop()
	}
	n := 0
	err := do(ctx, t, s, req, func(r *infer.Response) error {
		n++
		defer r.Memory.Release()
		return checkEcho(req, r)
	})
	switch {
	case err == nil && n == 1:
		return true
	case err == nil:
		t.Errorf("request %s: %d answers", req.ID, n)
	case infer.CodeOf(err) == infer.Cancelled, infer.ReasonOf(err) == infer.ReasonQueueTimeout:
	case faults && errors.Is(err, infer.ErrWorkerLost):
	default:
		t.Errorf("request %s: %v", req.ID, err)
	}
	return false
}
