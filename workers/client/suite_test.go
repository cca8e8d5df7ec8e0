package client

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
)

// transports are the ways that batches take; each passes the same suite.
func transports(t *testing.T) map[string]func(t *testing.T) *Workers {
	return map[string]func(t *testing.T) *Workers{
		"lane": func(t *testing.T) *Workers { return start(t, Config{Local: []LocalWorker{as("worker")}}) },
		"lane, read by a loop": func(t *testing.T) *Workers {
			return start(t, Config{Local: []LocalWorker{as("worker")}, Ears: looptest.Start(t)})
		},
		"stream": func(t *testing.T) *Workers {
			return start(t, Config{Local: []LocalWorker{as("worker")}, UseStream: true})
		},
		"remote": func(t *testing.T) *Workers {
			return start(t, Config{Remote: []RemoteWorker{{Address: startRemote(t, workers.Config{Insecure: true})}}})
		},
		"socket": func(t *testing.T) *Workers {
			return start(t, Config{Remote: []RemoteWorker{{Address: startSocket(t)}}})
		},
		"remote with TLS": func(t *testing.T) *Workers {
			files, client := certificates(t)
			return start(t, Config{Remote: []RemoteWorker{{Address: startRemote(t, workers.Config{TLS: files}), TLS: client}}})
		},
	}
}

var suite = map[string]func(t *testing.T, w *Workers){
	"echo":             testEcho,
	"in the arena":     testArenaInput,
	"an answer":        testAnswerAsInput,
	"segments":         testSegments,
	"big":              testBig,
	"one fails":        testOneFails,
	"cancel":           testCancel,
	"in parallel":      testParallel,
	"refused load":     testRefusedLoad,
	"after unload":     testAfterUnload,
	"many requests":    testManyRequests,
	"given twice":      testGivenTwice,
	"what there is":    testInventory,
	"empty tensor":     testEmpty,
	"outputs asked":    testOutputsAsked,
	"params come back": testTimesOut,
	"ragged":           testRagged,
	"open batches":     testOpenBatches,
	"cancel open":      testCancelOpen,
	"unload open":      testUnloadOpen,
}

func TestTransports(t *testing.T) {
	for name, open := range transports(t) {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			for name, test := range suite {
				t.Run(name, func(t *testing.T) {
					test(t, w)
					if n := w.Memory().InUse(); n != 0 {
						t.Errorf("%d bytes are left in use", n)
					}
				})
			}
		})
	}
}

// checkEcho says that a whole batch came back, and gives its memory back.
func checkEcho(t testing.TB, b *infer.Batch, r *infer.Result) {
	t.Helper()
	if r.Err != nil || r.More || len(r.Outputs) != len(b.Inputs) {
		t.Fatalf("result %+v of %d outputs, want %d", r.Err, len(r.Outputs), len(b.Inputs))
	}
	for i, o := range r.Outputs {
		in := &b.Inputs[i]
		want := bytes.Join(in.Segments, nil)
		if o.Name != strings.Replace(in.Name, "IN", "OUT", 1) || o.Datatype != in.Datatype || len(o.Shape) != len(in.Shape) ||
			o.Shape[0] != in.Shape[0] || !bytes.Equal(o.Data, want) {
			t.Errorf("output %d is %s %s %v of %d bytes", i, o.Name, o.Datatype, o.Shape, len(o.Data))
		}
	}
	r.Memory.Release()
}

func testEcho(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	for range 20 {
		b, results := newBatch(3, 100)
		v.Executor(0).Execute(b)
		checkEcho(t, b, wait(t, results))
	}
}

func testArenaInput(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(2, 64)
	for i := range b.Inputs {
		mem, err := w.Memory().Alloc(512)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Memory().Free(mem)
		copy(mem, b.Inputs[i].Segments[0])
		b.Inputs[i].Segments[0] = mem
	}
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

// What a model answered is the next one's input, where it lies.
func testAnswerAsInput(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	w.workers[0].mu.Lock()
	_, lane := w.workers[0].session.link.(*laneLink)
	w.workers[0].mu.Unlock()
	for _, n := range []int{16, 64 << 10} {
		b, results := newBatch(2, n)
		v.Executor(0).Execute(b)
		first := wait(t, results)
		next, again := newBatch(2, n)
		for i := range next.Inputs {
			next.Inputs[i].Segments[0] = first.Outputs[i].Data
			data := first.Outputs[i].Data
			if held := w.Layout().Holds(data); held != (lane && len(data) >= nameFrom) {
				t.Errorf("%d bytes: held %v", len(data), held)
			}
		}
		v.Executor(0).Execute(next)
		checkEcho(t, next, wait(t, again))
		first.Memory.Release()
	}
}

func testSegments(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(4, 10)
	for i := range b.Inputs {
		s := b.Inputs[i].Segments[0]
		b.Inputs[i].Segments = [][]byte{s[:40], s[40:120], s[120:]}
	}
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

func testBig(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(1, 2<<20)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

func testEmpty(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(1, 0)
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

func testManyRequests(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	for _, rows := range []int{1, 200, 2} { // a descriptor larger than the first block
		b, results := newBatch(rows, 1)
		v.Executor(0).Execute(b)
		checkEcho(t, b, wait(t, results))
	}
}

func testOutputsAsked(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(1, 4)
	b.Requests[0].Outputs = []infer.RequestedOutput{{Name: "OUTPUT1"}}
	v.Executor(0).Execute(b)
	r := wait(t, results)
	defer r.Memory.Release()
	if r.Err != nil || len(r.Outputs) != 1 || r.Outputs[0].Name != "OUTPUT1" {
		t.Errorf("got %+v", r)
	}
}

func testTimesOut(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, map[string]string{"execute_delay_ms": "5"}))
	defer unload(t, v)
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if r.Compute.Infer < 4e6 || r.Compute.Input < 0 || r.Compute.Output < 0 {
		t.Errorf("times %+v, want an inference of 5 ms", r.Compute)
	}
	checkEcho(t, b, r)
}

func testOneFails(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	b, results := newBatch(3, 4)
	b.Requests[1].Params = infer.Params{{Name: "fail", Value: infer.Value{Kind: infer.KindString, Str: "so it is"}}}
	v.Executor(0).Execute(b)
	seen := map[int]bool{}
	for more := true; more; {
		r := wait(t, results)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for _, p := range r.Responses {
			seen[p.Index] = true
			switch {
			case p.Index == 1 && (p.Err == nil || p.Err.Error() != "so it is" || infer.CodeOf(p.Err) != infer.Internal):
				t.Errorf("request 1 failed with %v", p.Err)
			case p.Index != 1 && (p.Err != nil || !p.Response.Final ||
				!bytes.Equal(p.Response.Outputs[0].Data, b.Inputs[0].Segments[0][p.Index*16:(p.Index+1)*16])):
				t.Errorf("request %d: %+v", p.Index, p)
			}
		}
		more = r.More
		r.Memory.Release()
	}
	if len(seen) != 3 {
		t.Errorf("answers to %v only", seen)
	}
}

func testCancel(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, map[string]string{"execute_delay_ms": "60000"}))
	defer unload(t, v)
	b, results := newBatch(2, 4)
	v.Executor(0).Execute(b)
	v.Executor(0).Cancel(b, 0)
	v.Executor(0).Cancel(b, 1)
	v.Executor(0).Cancel(b, 2) // there is none
	r := wait(t, results)
	defer r.Memory.Release()
	if r.Err != nil && infer.CodeOf(r.Err) == infer.Cancelled {
		return
	}
	for _, p := range r.Responses {
		if infer.CodeOf(p.Err) != infer.Cancelled {
			t.Errorf("got %+v", p)
		}
	}
	if len(r.Responses) == 0 {
		t.Errorf("got %+v", r)
	}
}

func testParallel(t *testing.T, w *Workers) {
	const instances = 4
	v := load(t, w, spec(instances, nil))
	defer unload(t, v)
	var wg sync.WaitGroup
	for i := range instances {
		wg.Go(func() {
			for k := range 50 {
				b, results := newBatch(1+k%3, 50)
				v.Executor(i).Execute(b)
				checkEcho(t, b, wait(t, results))
			}
		})
	}
	wg.Wait()
}

func testRefusedLoad(t *testing.T, w *Workers) {
	s := spec(1, nil)
	s.Config.Output = nil
	_, err := w.Load(t.Context(), s)
	if err == nil || infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), "at least one input") {
		t.Errorf("got %v", err)
	}
	s = spec(1, nil)
	s.Backend = "none"
	if _, err := w.Load(t.Context(), s); err == nil || infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v", err)
	}
	s = spec(1, nil)
	s.Instances[0].GPU = true
	if _, err := w.Load(t.Context(), s); err == nil || infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v", err)
	}
	s = spec(1, map[string]string{"creation_delay_ms": "60000"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Load(ctx, s); err == nil || infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("got %v", err)
	}
}

func testAfterUnload(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, nil))
	unload(t, v)
	unload(t, v)
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	if r := wait(t, results); infer.ReasonOf(r.Err) != infer.ReasonStopping || infer.CodeOf(r.Err) != infer.Unavailable {
		t.Errorf("got %v", r.Err)
	}
}

func testGivenTwice(t *testing.T, w *Workers) {
	v := load(t, w, spec(1, map[string]string{"execute_delay_ms": "30"}))
	defer unload(t, v)
	b, results := newBatch(1, 4)
	again, refused := newBatch(1, 4)
	v.Executor(0).Execute(b)
	v.Executor(0).Execute(again)
	if r := wait(t, refused); infer.CodeOf(r.Err) != infer.Internal {
		t.Errorf("got %v", r.Err)
	}
	checkEcho(t, b, wait(t, results))
}

func testInventory(t *testing.T, w *Workers) {
	devices, backends, states := w.Devices(), w.Backends(), w.States()
	if len(devices) != 1 || devices[0].GPU || len(backends) != 4 || backends[1].Name != "identity" || len(states) != 1 ||
		!states[0].Up || states[0].PID == 0 || !w.Ready() {
		t.Errorf("devices %+v, backends %+v, states %+v", devices, backends, states)
	}
	if _, err := w.Describe(t.Context(), &Spec{Backend: "identity", ModelFile: "/nowhere", Config: config(nil)}); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("describe: %v", err)
	}
	eventually(t, "a report", func() bool { return w.States()[0].Report != nil })
}

func TestWrongCertificate(t *testing.T) {
	files, client := certificates(t)
	_, stranger := certificates(t)
	stranger.CA = client.CA
	address := startRemote(t, workers.Config{TLS: files})
	w := start(t, Config{Remote: []RemoteWorker{{Address: address, TLS: stranger}}, StartTimeout: time.Second})
	if w.Ready() {
		t.Error("a gateway of another authority is served")
	}
	w = start(t, Config{Remote: []RemoteWorker{{Address: address}}, StartTimeout: time.Second})
	if w.Ready() {
		t.Error("a gateway without a certificate is served")
	}
	_, err := Start(t.Context(), Config{Remote: []RemoteWorker{{Address: address, TLS: TLSFiles{Cert: "/nowhere"}}}}, Deps{Log: logger(t)})
	if err == nil {
		t.Error("a gateway starts without its certificate")
	}
}
