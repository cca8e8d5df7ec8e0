package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// repeatSpec is a model of the repeat backend, which keeps batches.
func repeatSpec(decoupled bool) Spec {
	c := &modelconfig.ModelConfig{Name: "r", Backend: "repeat", ModelTransactionPolicy: &modelconfig.ModelTransactionPolicy{Decoupled: decoupled}}
	for name, dt := range map[string]modelconfig.DataType{"IN": modelconfig.DataType_TYPE_INT32, "DELAY": modelconfig.DataType_TYPE_UINT32} {
		c.Input = append(c.Input, &modelconfig.ModelInput{Name: name, DataType: dt, Dims: []int64{-1}})
	}
	c.Input = append(c.Input, &modelconfig.ModelInput{Name: "WAIT", DataType: modelconfig.DataType_TYPE_UINT32, Dims: []int64{1}})
	c.Output = []*modelconfig.ModelOutput{{Name: "OUT", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}},
		{Name: "IDX", DataType: modelconfig.DataType_TYPE_UINT32, Dims: []int64{1}}}
	return Spec{Name: "r", Version: 1, ModelDir: "/nowhere/r", ModelFile: "/nowhere/r/1/model", Config: c, Backend: "repeat",
		Instances: []Instance{{Name: "r_1_0_0"}}}
}

// forever is a delay in milliseconds that no test waits for.
const forever = 300_000

// repeats is a batch whose request has an answer after each of so many milliseconds.
func repeats(delays ...uint32) (*infer.Batch, chan *infer.Result) {
	b := &infer.Batch{ID: lastBatch.Add(1)}
	q := &infer.Request{ID: fmt.Sprint(b.ID)}
	add := func(name string, dt infer.Datatype, values ...uint32) {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, v)
		}
		shape := []int64{int64(len(values))}
		q.Inputs = append(q.Inputs, infer.Tensor{Name: name, Datatype: dt, Shape: shape, Data: data})
		b.Inputs = append(b.Inputs, infer.BatchInput{Name: name, Datatype: dt, Shape: shape, Segments: [][]byte{data}})
	}
	add("IN", infer.Int32, delays...)
	add("DELAY", infer.Uint32, delays...)
	add("WAIT", infer.Uint32, 0)
	b.Requests = []*infer.Request{q}
	results := make(chan *infer.Result, 64)
	b.Deliver = func(r *infer.Result) { results <- r }
	return b, results
}

// expectAll is expect of all results of a batch, wherever among them it is freed: a request may
// be answered before the result that frees its batch, and an end that comes first frees it too.
func expectAll(t *testing.T, results chan *infer.Result, want string) {
	t.Helper()
	got, frees := "", 0
	for ended := false; !ended; {
		r := wait(t, results)
		if ended = !r.More; r.Free {
			r.Free = false
			frees++
		}
		got += describeResult(r)
	}
	if got != want || frees > 1 {
		t.Errorf("got %q, freed %d times, want %q", got, frees, want)
	}
}

// An instance takes others while its batches are open, and each hears its own answers.
func testOpenBatches(t *testing.T, w *Workers) {
	v := load(t, w, repeatSpec(true))
	defer unload(t, v)
	open, openResults := repeats(forever)
	v.Executor(0).Execute(open)
	expect(t, openResults, "free ")
	slow, slowResults := repeats(60, 60)
	v.Executor(0).Execute(slow)
	freed(t, v.Executor(0), slow)
	for range 20 {
		quick, results := repeats(1)
		v.Executor(0).Execute(quick)
		expectAll(t, results, "OUT=1 IDX=0 end")
	}
	expectAll(t, slowResults, "OUT=60 IDX=0 OUT=60 IDX=1 end")
	v.Executor(0).Cancel(open, 0)
	expectAll(t, openResults, "cancelled end")
}

// freed waits until the instance takes another batch.
func freed(t *testing.T, e infer.Executor, b *infer.Batch) {
	t.Helper()
	eventually(t, "a free instance", func() bool { return !e.Occupied(b.ID) })
}

// Inputs that are read no more are given back while the batch is open: nothing is left of them in
// the arena.
func TestInputsReadAreFreed(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	s := repeatSpec(false)
	s.Config.Parameters = map[string]*modelconfig.ModelParameter{"release_inputs": {StringValue: "true"}}
	v := load(t, w, s)
	defer unload(t, v)
	e := v.Executor(0).(*executor)
	b, results := repeats(forever)
	e.Execute(b)
	expect(t, results, "free read ")
	e.mu.Lock()
	o := e.opens.find(b.ID)
	if o == nil || !o.read || len(o.copies) > 0 || o.block == nil || len(o.flags) != 1 {
		t.Errorf("the open batch is %+v", o)
	}
	e.mu.Unlock()
	e.Cancel(b, 0) // its flags are there still
	expect(t, results, "cancelled end")
}

// Errors of a decoupled model stand among its answers.
func TestErrorsAmongAnswers(t *testing.T) {
	for _, config := range []Config{{Local: []LocalWorker{as("worker")}}, {Local: []LocalWorker{as("worker")}, UseStream: true}} {
		w := start(t, config)
		c := &modelconfig.ModelConfig{Name: "s", Backend: "square", ModelTransactionPolicy: &modelconfig.ModelTransactionPolicy{Decoupled: true},
			Input:      []*modelconfig.ModelInput{{Name: "IN", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}}},
			Output:     []*modelconfig.ModelOutput{{Name: "OUT", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}}},
			Parameters: map[string]*modelconfig.ModelParameter{"CUSTOM_FAIL_COUNT": {StringValue: "2"}}}
		v := load(t, w, Spec{Name: "s", Version: 1, ModelDir: "/nowhere/s", ModelFile: "/nowhere/s/1/model", Config: c, Backend: "square",
			Instances: []Instance{{Name: "s_1_0_0"}}})
		results := make(chan *infer.Result, 8)
		b := &infer.Batch{ID: lastBatch.Add(1), Requests: []*infer.Request{{ID: "q"}}, Deliver: func(r *infer.Result) { results <- r },
			Inputs: []infer.BatchInput{{Name: "IN", Datatype: infer.Int32, Shape: []int64{1}, Segments: [][]byte{{3, 0, 0, 0}}}}}
		b.Requests[0].Inputs = []infer.Tensor{{Name: "IN", Datatype: infer.Int32, Shape: []int64{1}, Data: []byte{3, 0, 0, 0}}}
		v.Executor(0).Execute(b)
		var got string
		for !strings.HasSuffix(got, "end") {
			got += describeResult(wait(t, results))
		}
		if got = strings.Replace(got, "free ", "", 1); got != "OUT=3 unknown on unknown on end" {
			t.Errorf("%+v: got %q", config, got)
		}
		unload(t, v)
	}
}

// A request of an open batch is cancelled, and not one of the batch that came behind it.
func testCancelOpen(t *testing.T, w *Workers) {
	v := load(t, w, repeatSpec(false))
	defer unload(t, v)
	e := v.Executor(0)
	var batches []*infer.Batch
	var results []chan *infer.Result
	for _, delay := range []uint32{250, forever, 250} {
		b, r := repeats(delay)
		e.Execute(b)
		freed(t, e, b)
		batches, results = append(batches, b), append(results, r)
	}
	e.Cancel(batches[1], 0)
	expectAll(t, results[1], "cancelled end")
	e.Cancel(batches[1], 0) // it has ended
	expectAll(t, results[0], "OUT=250 IDX=0 end")
	expectAll(t, results[2], "OUT=250 IDX=0 end")
}

// Unload waits for open batches.
func testUnloadOpen(t *testing.T, w *Workers) {
	v := load(t, w, repeatSpec(false))
	b, results := repeats(100)
	v.Executor(0).Execute(b)
	freed(t, v.Executor(0), b)
	unload(t, v)
	expectAll(t, results, "OUT=100 IDX=0 end")
}

// A worker's death fails what it had open and what came behind that, the oldest first.
func TestLostWithOpenBatches(t *testing.T) {
	for name, stream := range map[string]bool{"lane": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t, Config{Local: []LocalWorker{as("worker")}, UseStream: stream, Backoff: time.Millisecond})
			v := load(t, w, repeatSpec(false))
			var results []chan *infer.Result
			order := make(chan uint64, 8)
			for range 3 {
				b, r := repeats(forever)
				b.Deliver = func(res *infer.Result) {
					if !res.More {
						order <- b.ID
					}
					r <- res
				}
				v.Executor(0).Execute(b)
				expect(t, r, "free ")
				results = append(results, r)
			}
			s, err := w.workers[0].current(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s.process.kill()
			for _, r := range results {
				if res := wait(t, r); !errors.Is(res.Err, infer.ErrWorkerLost) {
					t.Errorf("got %+v", res)
				}
			}
			if a, b, c := <-order, <-order, <-order; a > b || b > c {
				t.Errorf("batches end in the order %d %d %d", a, b, c)
			}
			eventually(t, "a restart", func() bool { return w.States()[0].Restarts > 0 })
			eventually(t, "an answer", func() bool {
				b, r := repeats(1)
				v.Executor(0).Execute(b)
				res := wait(t, r)
				if res.More {
					res = wait(t, r)
				}
				res.Memory.Release()
				return res.Err == nil
			})
			unload(t, v)
			if n := w.Memory().InUse(); n != 0 {
				t.Errorf("%d bytes are left in use", n)
			}
		})
	}
}
