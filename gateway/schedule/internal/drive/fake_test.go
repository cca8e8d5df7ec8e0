package drive_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// fake is an instance that keeps what it got until it is told to answer.
type fake struct {
	mu       sync.Mutex
	batches  []*infer.Batch
	ended    int
	cancels  []string
	memory   *memory
	executed func(*infer.Batch) // instead of keeping it
}

func (f *fake) Execute(b *infer.Batch) {
	if f.executed != nil {
		f.executed(b)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, b)
}

func (f *fake) Cancel(b *infer.Batch, i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancels = append(f.cancels, b.Requests[i].ID)
}

func (*fake) Occupied(uint64) bool    { return false }
func (*fake) Place() (string, string) { return "", "" }

func (f *fake) cancelled() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.cancels)
}

// ids says what the instance got, batch by batch.
func (f *fake) ids() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, b := range f.batches {
		s := ""
		for _, r := range b.Requests {
			s += r.ID
		}
		out = append(out, s)
	}
	return fmt.Sprint(out)
}

// next is the oldest batch that was not answered.
func (f *fake) next(t *testing.T) *infer.Batch {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended >= len(f.batches) {
		t.Fatal("the instance has no batch")
	}
	f.ended++
	return f.batches[f.ended-1]
}

func (f *fake) answer(t *testing.T) {
	t.Helper()
	b := f.next(t)
	b.Deliver(echo(b))
}

func (f *fake) lose(t *testing.T) {
	t.Helper()
	f.next(t).Deliver(&infer.Result{Err: fmt.Errorf("worker gone: %w", infer.ErrWorkerLost)})
}

// echo answers a batch with its inputs, gathered, under counted memory.
func echo(b *infer.Batch) *infer.Result {
	res := &infer.Result{Memory: infer.NewBuffer(make([]byte, 1), func(*infer.Buffer) {})}
	for _, in := range b.Inputs {
		res.Outputs = append(res.Outputs, infer.Tensor{Name: "OUT_" + in.Name, Datatype: in.Datatype,
			Shape: append([]int64(nil), in.Shape...), Data: bytes.Join(in.Segments, nil)})
	}
	return res
}

// memory is a schedule.Memory that knows what is out.
type memory struct {
	mu    sync.Mutex
	limit int64
	used  int64
	out   map[*byte][]byte
}

func newMemory(limit int64) *memory { return &memory{limit: limit, out: map[*byte][]byte{}} }

func (m *memory) Alloc(n int64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used+n > m.limit {
		return nil, fmt.Errorf("memory is full")
	}
	b := make([]byte, n)
	m.used += n
	m.out[&b[0]] = b
	return b, nil
}

func (m *memory) Free(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.out[&b[0]]; !ok {
		panic("freed what was not allocated")
	}
	m.used -= int64(len(b))
	delete(m.out, &b[0])
	clear(b) // whoever still reads it is found out
}

func (m *memory) Holds(b []byte) bool { return false }

func (m *memory) inUse() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// counts is an Observer.
type counts struct{ requests, rows, batches, queued atomic.Int64 }

func (c *counts) Executed(requests, rows int, _ infer.ComputeTimes) {
	c.requests.Add(int64(requests))
	c.rows.Add(int64(rows))
	c.batches.Add(1)
}

func (c *counts) Queued(delta int) { c.queued.Add(int64(delta)) }

func deps(mem schedule.Memory, obs schedule.Observer, execs ...infer.Executor) schedule.Deps {
	return schedule.Deps{Executors: execs, Memory: mem, Observer: obs, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
		Log: slog.New(slog.DiscardHandler)}
}

// request has one row of an FP32 and one of a BYTES input, made from id.
func request(id string, rows int) *infer.Request {
	fp := bytes.Repeat([]byte(id)[:1], 8*rows)
	var str []byte
	for range rows {
		str = append(str, byte(len(id)), 0, 0, 0)
		str = append(str, id...)
	}
	return &infer.Request{ID: id, Rows: rows, Inputs: []infer.Tensor{
		{Name: "A", Datatype: infer.FP32, Shape: []int64{int64(rows), 2}, Data: fp},
		{Name: "S", Datatype: infer.Bytes, Shape: []int64{int64(rows), 1}, Data: str},
	}}
}

// checkEcho says what is wrong with the answer to a request.
func checkEcho(req *infer.Request, r *infer.Response) error {
	if r.ID != req.ID || r.Model != "m" || r.Version != "3" || !r.Final {
		return fmt.Errorf("answer to %s is %q %q %q final %v", req.ID, r.ID, r.Model, r.Version, r.Final)
	}
	if len(r.Outputs) != len(req.Inputs) {
		return fmt.Errorf("answer to %s has %d outputs", req.ID, len(r.Outputs))
	}
	for i := range r.Outputs {
		in := &req.Inputs[i]
		if out := &r.Outputs[i]; !bytes.Equal(out.Data, in.Data) || out.Shape[0] != in.Shape[0] {
			return fmt.Errorf("answer to %s: %s is %q of %v, want %q", req.ID, out.Name, out.Data, out.Shape, in.Data)
		}
	}
	return nil
}

// caller is one Do under way.
type caller struct {
	req  *infer.Request
	done chan struct{}
	err  error
	n    int
	at   time.Time
}

func start(ctx context.Context, s schedule.Scheduler, req *infer.Request) *caller {
	c := &caller{req: req, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = do(ctx, nil, s, req, func(r *infer.Response) error {
			c.n++
			defer r.Memory.Release()
			return checkEcho(req, r)
		})
		c.at = time.Now()
	}()
	return c
}

func (c *caller) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		t.Fatalf("request %s: no answer", c.req.ID)
	}
	return c.err
}

func (c *caller) finished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
