package client

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// A client that cuts its memory off under a batch, which reads it late, fails its own
// request; one beside it in the batch, and the worker, don't notice.
func TestTruncatedUnderABatch(t *testing.T) {
	const n, row = 1 << 16, 4 << 16
	for name, open := range local() {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			pid := w.States()[0].PID
			v := load(t, w, one(map[string]string{"execute_delay_ms": "100"}))
			defer unload(t, v)
			bad, good := newShared(t, 2*row), newShared(t, 2*row)
			openRegionOf(t, w, bad.region(1))
			openRegionOf(t, w, good.region(2))
			in, other := infer.Place{Region: 1, Size: row}, infer.Place{Region: 2, Size: row}
			out := infer.Place{Region: 2, Offset: row, Size: row}
			for _, tc := range []struct {
				name    string
				in, out []infer.Place
				fails   []bool
			}{
				{"alone", []infer.Place{in}, []infer.Place{{}}, []bool{true}},
				{"beside", []infer.Place{other, {}, in}, []infer.Place{out, {}, {}}, []bool{false, false, true}},
				{"again", []infer.Place{in, {}}, []infer.Place{out, {}}, []bool{true, false}},
				{"destination", []infer.Place{{}, other}, []infer.Place{in, {}}, []bool{true, false}},
				{"alone with a destination", []infer.Place{other}, []infer.Place{in}, []bool{true}},
			} {
				b, results := placedBatch(n, tc.in, tc.out)
				posted := time.Now()
				v.Executor(0).Execute(b)
				if err := bad.file.Truncate(100); err != nil {
					t.Fatal(err)
				}
				late := time.Since(posted) > 50*time.Millisecond // the batch may have ended before
				r := wait(t, results)
				if late {
					r.Memory.Release()
					b, results = placedBatch(n, tc.in, tc.out)
					v.Executor(0).Execute(b)
					r = wait(t, results)
				}
				for i, a := range answers(t, b, r) {
					switch {
					case tc.fails[i] && (infer.CodeOf(a.Err) != infer.InvalidArg || !strings.Contains(a.Err.Error(), "'r1' was truncated")):
						t.Errorf("%s: request %d: %v", tc.name, i, a.Err)
					case !tc.fails[i] && a.Err != nil:
						t.Errorf("%s: request %d beside it: %v", tc.name, i, a.Err)
					case !tc.fails[i] && !tc.out[i].IsZero() && !bytes.Equal(good.mem[row:], good.mem[:row]):
						t.Errorf("%s: request %d beside it has other bytes", tc.name, i)
					}
				}
				r.Memory.Release()
			}
			if now := w.States()[0]; now.PID != pid || now.Restarts != 0 {
				t.Errorf("the worker was restarted %d times", now.Restarts)
			}
			// It is bad until it is registered anew.
			if err := bad.file.Truncate(2 * row); err != nil {
				t.Fatal(err)
			}
			closeRegionOf(t, w, 1)
			openRegionOf(t, w, bad.region(1))
			b, results := placedBatch(n, []infer.Place{in}, []infer.Place{{}})
			v.Executor(0).Execute(b)
			r := wait(t, results)
			if a := answers(t, b, r); a[0].Err != nil {
				t.Error(a[0].Err)
			}
			r.Memory.Release()
		})
	}
}

// Integers are what the model got, whatever the client writes while it runs; one that the
// model reads where it lies is not looked at twice.
func TestIntegersAreCopied(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	s := one(map[string]string{"execute_delay_ms": "150"})
	s.Config.Input[0].DataType, s.Config.Output[0].DataType = modelconfig.DataType_TYPE_INT32, modelconfig.DataType_TYPE_INT32
	v := load(t, w, s)
	defer unload(t, v)
	mem := newShared(t, 4096)
	openRegionOf(t, w, mem.region(1))
	before := bytes.Clone(mem.mem)
	b, results := placedBatch(1024, []infer.Place{{Region: 1, Size: 4096}}, []infer.Place{{}})
	b.Inputs[0].Datatype = infer.Int32
	for try := 1; ; try++ {
		stop := flipLater(mem.mem, 50*time.Millisecond)
		v.Executor(0).Execute(b)
		r := wait(t, results)
		<-stop
		a := answers(t, b, r)
		if a[0].Err != nil {
			t.Fatal(a[0].Err)
		}
		same := bytes.Equal(a[0].Response.Outputs[0].Data, before)
		if bytes.Equal(mem.mem, before) {
			t.Error("nothing was written")
		}
		r.Memory.Release()
		if same {
			return
		}
		if try == 5 { // a busy machine may write before the worker has begun
			t.Fatal("the model saw what was written while it ran")
		}
		before = bytes.Clone(mem.mem)
		b, results = placedBatch(1024, []infer.Place{{Region: 1, Size: 4096}}, []infer.Place{{}})
		b.Inputs[0].Datatype = infer.Int32
	}
}

// flipLater changes all bytes after a while.
func flipLater(mem []byte, after time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(after, func() {
		defer close(done)
		for i := range mem {
			mem[i] ^= 0xff
		}
	})
	return done
}

// BYTES are counted where they come out of the region, and only their request fails.
func TestStringsInRegions(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	s := one(nil)
	s.Config.Input[0].DataType, s.Config.Output[0].DataType = modelconfig.DataType_TYPE_STRING, modelconfig.DataType_TYPE_STRING
	v := load(t, w, s)
	defer unload(t, v)
	mem := newShared(t, 4096)
	openRegionOf(t, w, mem.region(1))
	two := append([]byte{2, 0, 0, 0, 'h', 'i', 3, 0, 0, 0}, "you"...) // two elements, 13 bytes
	copy(mem.mem, two)
	copy(mem.mem[100:], []byte{255, 255, 255, 255, 1, 1, 1, 1, 1, 1, 1, 1, 1})
	good, bad := infer.Place{Region: 1, Size: 13}, infer.Place{Region: 1, Offset: 100, Size: 13}
	out := infer.Place{Region: 1, Offset: 1001, Size: 13}
	for _, tc := range []struct{ in, out []infer.Place }{
		{[]infer.Place{good}, []infer.Place{out}},
		{[]infer.Place{good, {}, bad, good}, []infer.Place{{}, {}, {}, out}},
		{[]infer.Place{bad, {}}, []infer.Place{out, {}}},
		{[]infer.Place{bad}, []infer.Place{{}}},
	} {
		b, results := placedBatch(1, tc.in, tc.out)
		b.Inputs[0].Datatype, b.Inputs[0].Shape = infer.Bytes, []int64{int64(len(tc.in)), 2}
		for i := range tc.in {
			if tc.in[i].IsZero() {
				b.Inputs[0].Segments[i] = two
			}
		}
		clear(mem.mem[1000:1100])
		v.Executor(0).Execute(b)
		r := wait(t, results)
		for i, a := range answers(t, b, r) {
			if tc.in[i] == bad {
				if infer.CodeOf(a.Err) != infer.InvalidArg || !strings.Contains(a.Err.Error(), "expected 2 string elements for inference input 'INPUT0' for model 'm', got 1") {
					t.Errorf("%v: request %d: %v", tc, i, a.Err)
				}
				continue
			}
			if a.Err != nil {
				t.Fatalf("%v: request %d: %v", tc, i, a.Err)
			}
			data := a.Response.Outputs[0].Data
			if !tc.out[i].IsZero() {
				data = mem.mem[1001:1014]
			}
			if !bytes.Equal(data, two) {
				t.Errorf("%v: request %d: %q", tc, i, data)
			}
		}
		r.Memory.Release()
	}
}

// An output that has no room is its request's error, with the original's words.
func TestOutputTooLarge(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, one(nil))
	defer unload(t, v)
	mem := newShared(t, 4096)
	openRegionOf(t, w, mem.region(1))
	small := infer.Place{Region: 1, Offset: 8, Size: 16}
	for _, others := range []int{0, 2} {
		b, results := placedBatch(16, make([]infer.Place, 1+others), append([]infer.Place{small}, make([]infer.Place, others)...))
		before := bytes.Clone(mem.mem)
		v.Executor(0).Execute(b)
		r := wait(t, results)
		const want = "shared memory size specified with the request for output 'OUTPUT0' (16 bytes) should be at least 64 bytes to hold the results"
		err := r.Err
		if err == nil {
			all := answers(t, b, r)
			err = all[0].Err
			for _, a := range all[1:] {
				if a.Err != nil {
					t.Errorf("a request beside it: %v", a.Err)
				}
			}
		}
		if infer.CodeOf(err) != infer.Internal || err.Error() != want {
			t.Errorf("got %v", err)
		}
		if !bytes.Equal(mem.mem, before) {
			t.Error("something was written")
		}
		r.Memory.Release()
	}
}

// Regions are there again before a restarted worker executes anything, and nothing of them
// stays open in the gateway.
func TestRegionsSurviveWorkers(t *testing.T) {
	before := openFiles(t)
	t.Run("workers", func(t *testing.T) {
		w := start(t, Config{Local: []LocalWorker{as("worker")}, Backoff: time.Millisecond})
		v := load(t, w, one(nil))
		defer unload(t, v)
		mem, cut := newShared(t, 1<<16), newShared(t, 1<<16)
		const regions = 100
		for i := range regions {
			openRegionOf(t, w, mem.region(uint32(i+1)))
		}
		openRegionOf(t, w, cut.region(1000))
		if err := cut.file.Truncate(10); err != nil {
			t.Fatal(err)
		}
		during := openFiles(t)
		for round := range 3 {
			kill(t, w, unix.SIGKILL)
			eventually(t, "the worker is back with its model", func() bool {
				b, results := placedBatch(16, []infer.Place{{Region: regions, Offset: 64, Size: 64}}, []infer.Place{{Region: 1, Offset: 128, Size: 64}})
				v.Executor(0).Execute(b)
				r := wait(t, results)
				defer r.Memory.Release()
				if r.Err != nil {
					if infer.ReasonOf(r.Err) != infer.ReasonWorkerLost {
						t.Fatal(r.Err)
					}
					return false
				}
				if a := answers(t, b, r); a[0].Err != nil || !bytes.Equal(mem.mem[64:128], mem.mem[128:192]) {
					t.Fatalf("in place: %v", a[0].Err)
				}
				return true
			})
			if n := openFiles(t); n > during+2 {
				t.Errorf("round %d: %d files are open, were %d", round, n, during)
			}
		}
		b, results := placedBatch(16, []infer.Place{{Region: 1000, Size: 64}}, []infer.Place{{}})
		v.Executor(0).Execute(b)
		r := wait(t, results)
		if a := answers(t, b, r); a[0].Err == nil || !strings.Contains(a[0].Err.Error(), "truncated") {
			t.Errorf("memory that was cut off while there was no worker: %v", a[0].Err)
		}
		r.Memory.Release()
		for i := range regions {
			closeRegionOf(t, w, uint32(i+1))
		}
		if n := openFiles(t); n > during+2 {
			t.Errorf("after closing %d files are open, were %d", n, during)
		}
	})
	eventually(t, "all files are closed", func() bool { return openFiles(t) <= before })
}

func openFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A region is not unmapped under a batch.
func TestCloseWaitsForBatches(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, one(map[string]string{"execute_delay_ms": "200"}))
	defer unload(t, v)
	mem := newShared(t, 4096)
	openRegionOf(t, w, mem.region(1))
	b, results := placedBatch(16, []infer.Place{{Region: 1, Size: 64}}, []infer.Place{{Region: 1, Offset: 64, Size: 64}})
	v.Executor(0).Execute(b)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.CloseRegion(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r := wait(t, results)
	if a := answers(t, b, r); a[0].Err == nil && !bytes.Equal(mem.mem[:64], mem.mem[64:128]) {
		t.Error("other bytes were written")
	}
	r.Memory.Release()
}
