package workers_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// large is how many floats a row has whose requests may be executed one by one.
const large = 32 << 10

// apartBatch is a batch of requests with so many rows each, in a segment for each, and its
// data.
func apartBatch(id uint64, rows ...int) (b *wire.Batch, data [][]byte) {
	b = &wire.Batch{ID: id}
	for i, n := range rows {
		b.Requests = append(b.Requests, wire.Request{ID: fmt.Sprint("r", i), Rows: n, Cancel: uint32(i)})
		data = append(data, bytes.Repeat([]byte{byte(id), byte(i), 1, 0}, n*large))
		b.Rows += n
	}
	b.Inputs = []wire.Input{{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{int64(b.Rows), large}, Segments: make([]wire.Segment, len(rows))}}
	return b, data
}

// answersOf are a result's outputs by request, or its errors as texts.
func (g *gateway) answersOf(t *testing.T, b *wire.Batch, res *wire.Result) []string {
	t.Helper()
	answers := make([]string, len(b.Requests))
	if len(res.Outputs) > 0 {
		all, row := g.data(t, res.Outputs[0]), 0
		for i, q := range b.Requests {
			n := q.Rows * len(all) / b.Rows
			answers[i] = string(all[row : row+n])
			row += n
		}
	}
	for _, r := range res.Responses {
		switch {
		case answers[r.Index] != "":
			t.Errorf("request %d has two answers", r.Index)
		case r.Err != "":
			answers[r.Index] = "error: " + r.Err
		default:
			o := r.Outputs[0]
			if o.Shape[0] != int64(b.Requests[r.Index].Rows) || !r.Final {
				t.Errorf("request %d of %d rows: %+v", r.Index, b.Requests[r.Index].Rows, r)
			}
			answers[r.Index] = string(g.data(t, o))
		}
	}
	return answers
}

// Large inputs that lie apart are executed one by one or together, whichever is faster, and
// nobody can tell from the answers.
func TestApart(t *testing.T) {
	s := &scripted{}
	var whole, apart atomic.Int64
	s.execute.Store(func(b backend.Batch) error {
		if n := len(b.Requests()); n > 1 {
			whole.Add(1)
		} else {
			apart.Add(1)
			in := b.Requests()[0].Inputs()
			if in[0].Shape[0] != int64(b.Rows()) || b.Requests()[0].Rows() != b.Rows() || !bytes.Equal(in[0].Data, b.Inputs()[0].Data) {
				return errors.New("the request is not the batch")
			}
		}
		return echo(b)
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	const batches = 40
	for id := range uint64(batches) {
		b, data := apartBatch(id, 1, 3, 2)
		p := g.layOut(t, b, data...)
		g.post(0, p)
		c, res := g.result(t)
		if res.Err != "" || res.Compute.Input < 0 || res.Compute.Infer < 0 || res.Compute.Output < 0 {
			t.Fatalf("batch %d: %+v", id, res)
		}
		for i, got := range g.answersOf(t, b, res) {
			if got != string(data[i]) {
				t.Fatalf("batch %d, request %d: an answer of %d bytes, want the %d of its input", id, i, len(got), len(data[i]))
			}
		}
		g.lane.Release(c.Token)
		g.requests.Free(p.mem)
		for _, seg := range b.Inputs[0].Segments {
			g.requests.FreeAt(seg.Offset)
		}
	}
	if whole.Load() < 4 || apart.Load() < 3*4 {
		t.Errorf("%d batches were gathered, %d requests executed alone; both have to be measured", whole.Load(), apart.Load())
	}
}

// Each request of a batch that is executed one by one has its own end.
func TestApartEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		execute func(i int, b backend.Batch) error // of the request that is i-th in its batch
		want    string                             // of request 1; "": its data
	}{
		"error":            {func(int, backend.Batch) error { return infer.Errorf(infer.InvalidArg, "bad") }, "error: bad"},
		"fail":             {func(_ int, b backend.Batch) error { return b.Fail(0, infer.Errorf(infer.Internal, "no")) }, "error: no"},
		"panic":            {func(int, backend.Batch) error { panic("x") }, "error: the model's backend failed in a batch"},
		"no answer":        {func(int, backend.Batch) error { return nil }, "error: the model gave no answer to the request"},
		"another's answer": {func(_ int, b backend.Batch) error { return b.Respond(1, nil, nil, true) }, "error: the model answered request -1, which had its final answer"},
		"the batch's rows": {func(_ int, b backend.Batch) error {
			t := b.Inputs()[0]
			t.Name, t.Shape = "OUTPUT0", []int64{9, large}
			return b.Outputs([]infer.Tensor{t})
		}, "error: output 'OUTPUT0' has shape [9 32768], which does not begin with the batch's 2 rows"},
		"own answer": {func(_ int, b backend.Batch) error {
			t := b.Inputs()[0]
			t.Name = "OUTPUT0"
			return b.Respond(0, []infer.Tensor{t}, nil, true)
		}, ""},
		"cancelled": {nil, "error: request was cancelled"},
	} {
		t.Run(name, func(t *testing.T) { testApartEnd(t, tc.execute, tc.want) })
	}
}

func testApartEnd(t *testing.T, execute func(i int, b backend.Batch) error, want string) {
	s := &scripted{}
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	var leave atomic.Pointer[uint32]
	s.execute.Store(func(b backend.Batch) error {
		i := int(b.Requests()[0].ID()[1] - '0')
		if i == 0 && execute == nil { // while the first runs the client of the second leaves
			atomic.StoreUint32(leave.Load(), 1)
		}
		if i == 1 && execute != nil {
			return execute(i, b)
		}
		return echo(b)
	})
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := apartBatch(7, 1, 2, 1)
	p := g.layOut(t, b, data...)
	leave.Store((*uint32)(unsafe.Pointer(&p.flags[4])))
	g.post(0, p) // the first batch is executed one by one
	c, res := g.result(t)
	if c.NoMemory || res.Err != "" {
		t.Fatalf("%+v %+v", c, res)
	}
	got := g.answersOf(t, b, res)
	if want == "" {
		want = string(data[1])
	}
	if got[0] != string(data[0]) || got[2] != string(data[2]) {
		t.Errorf("the others have answers of %d and %d bytes", len(got[0]), len(got[2]))
	}
	if got[1] != want {
		t.Errorf("request 1: %.80q, want %.80q", got[1], want)
	}
	g.lane.Release(c.Token)
}

// What can't be read row by row, where it lies, is gathered.
func TestApartNot(t *testing.T) {
	for name, change := range map[string]func(b *wire.Batch, data [][]byte) [][]byte{
		"small": func(b *wire.Batch, data [][]byte) [][]byte {
			b.Inputs[0].Shape[1] = 16
			return [][]byte{data[0][:64], data[1][:128], data[2][:64]}
		},
		"across requests": func(b *wire.Batch, data [][]byte) [][]byte {
			all := bytes.Join(data, nil)
			return [][]byte{all[:large], all[large : 9*large], all[9*large:]}
		},
		"shared": func(b *wire.Batch, data [][]byte) [][]byte {
			b.Inputs[0].Layout = infer.Shared
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{}
			s.execute.Store(func(b backend.Batch) error {
				if len(b.Requests()) != 3 {
					return fmt.Errorf("a batch of %d requests", len(b.Requests()))
				}
				return echo(b)
			})
			g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
			g.hello(t, true)
			g.load(t, loadRequest(1, fp32Config(nil), 0))
			b, data := apartBatch(7, 1, 2, 1)
			data = change(b, data)
			g.post(0, g.layOut(t, b, data...))
			c, res := g.result(t)
			if res.Err != "" || !bytes.Equal(g.data(t, res.Outputs[0]), bytes.Join(data, nil)) {
				t.Errorf("%+v", res)
			}
			g.lane.Release(c.Token)
		})
	}
}

// What a backend says of its phases is said of the request that it sees: a backend that names
// the end of the computation alone has no input phase, whenever its turn came.
func TestApartTimes(t *testing.T) {
	const each = 5 * time.Millisecond
	s := &scripted{}
	s.execute.Store(func(b backend.Batch) error {
		for end := time.Now().Add(each); time.Now().Before(end); {
		}
		b.InferDone()
		return echo(b)
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := apartBatch(7, 1, 1, 1, 1)
	p := g.layOut(t, b, data...)
	begin := time.Now()
	g.post(0, p) // the first batch is executed one by one
	c, res := g.result(t)
	took, got := time.Since(begin), res.Compute
	if got.Input < 0 || got.Output < 0 || got.Infer < int64(4*each) || got.Input+got.Infer+got.Output > int64(took) {
		t.Errorf("a batch that took %v has the times %+v", took, got)
	}
	g.lane.Release(c.Token)
}

// Where the response memory is short in the middle of a batch, the batch waits once, and the
// requests that had room have their answers.
func TestApartFullMemory(t *testing.T) {
	const wait = 300 * time.Millisecond
	s := &scripted{}
	s.execute.Store(echo)
	g := startLocal(t, workers.Config{MemoryWait: wait}, scriptedDeps(s), 1<<20+64<<10)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := apartBatch(7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	p := g.layOut(t, b, data...)
	begin := time.Now()
	g.post(0, p)
	c, res := g.result(t)
	if took := time.Since(begin); took > 3*wait {
		t.Errorf("the batch took %v, where memory is waited for for %v", took, wait)
	}
	good, refused := 0, 0
	for i, got := range g.answersOf(t, b, res) {
		switch {
		case got == string(data[i]):
			good++
		case strings.HasPrefix(got, "error: "):
			refused++
		}
	}
	if good < 2 || refused < 2 || good+refused != len(data) {
		t.Errorf("%d requests of %d have their answers, %d were refused: %+v", good, len(data), refused, c)
	}
	for _, r := range res.Responses {
		if r.Err != "" && r.Reason != infer.ReasonMemory {
			t.Errorf("request %d was refused for %q: %s", r.Index, r.Reason, r.Err)
		}
	}
	g.lane.Release(c.Token)
}

// Requests that were cancelled, or failed, don't make one kind look faster than it is.
func TestApartHostile(t *testing.T) {
	s := &scripted{}
	var whole, apart atomic.Int64
	s.execute.Store(func(b backend.Batch) error { // takes as long for one as for all
		for end := time.Now().Add(3 * time.Millisecond); time.Now().Before(end); {
		}
		if len(b.Requests()) > 1 {
			whole.Add(1)
		} else {
			apart.Add(1)
		}
		if b.Requests()[0].ID() == "bad" {
			return errors.New("bad")
		}
		return echo(b)
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := apartBatch(7, 1, 1, 1, 1)
	p := g.layOut(t, b, data...)
	run := func(cancelled int) {
		for i := range b.Requests {
			v := uint32(0)
			if i < cancelled {
				v = 1
			}
			atomic.StoreUint32((*uint32)(unsafe.Pointer(&p.flags[4*i])), v)
		}
		g.post(0, p)
		c, _ := g.result(t)
		g.lane.Release(c.Token)
	}
	for range 16 {
		run(3)
	}
	whole.Store(0)
	for range 12 {
		run(0)
	}
	if whole.Load() < 8 {
		t.Errorf("after cancellations %d of 12 batches are gathered, which is faster", whole.Load())
	}
	// A client whose requests fail all batches does not end the search for the faster kind.
	b.Requests[0].ID = "bad"
	g.load(t, loadRequest(2, fp32Config(nil), 1))
	bad := g.layOut(t, b, data...)
	apart.Store(0)
	for range 16 {
		g.post(1, bad)
		c, _ := g.result(t)
		g.lane.Release(c.Token)
	}
	if apart.Load() < 4*7 {
		t.Errorf("of 16 batches that fail when gathered, %d requests were executed alone", apart.Load())
	}
}
