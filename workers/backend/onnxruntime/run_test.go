//go:build onnxruntime && cgo

package onnxruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

const loopConfig = `name: "loop"
input { name: "COUNT" data_type: TYPE_INT64 dims: 1 }
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }`

func TestCancelEndsLongRun(t *testing.T) {
	inst := started(t, opened(t, nil), spec(t, "loop", loopConfig))
	x := floats("X", []int64{1}, 0)
	same(t, answer(t, inst, 0, ints("COUNT", []int64{1}, 3), x), floats("Y", []int64{1}, 3))

	b := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{ints("COUNT", []int64{1}, 1<<40), x}})
	timer := time.AfterFunc(50*time.Millisecond, func() { b.Cancel(0) })
	defer timer.Stop()
	begin := time.Now()
	b.Run(inst)
	if a := b.Answers()[0]; a.Err == nil || infer.CodeOf(a.Err) != infer.Cancelled || infer.ReasonOf(a.Err) != infer.ReasonCancelled {
		t.Errorf("answer %+v, want Cancelled", a)
	}
	t.Logf("ended after %v", time.Since(begin))
	same(t, answer(t, inst, 0, ints("COUNT", []int64{1}, 2), x), floats("Y", []int64{1}, 2))
}

// threads counts this process's threads of ONNX Runtime and others.
func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	return len(tasks)
}

func TestThreadsOfSessions(t *testing.T) {
	tests := []struct {
		name, parameters string
		instances, want  int // threads beside the instances' own
		shared           bool
	}{
		{"default", "", 3, 0, true},
		{"three intra", `parameters { key: "intra_op_thread_count" value { string_value: "3" } }`, 2, 4, false},
		{"three intra shared", `parameters { key: "intra_op_thread_count" value { string_value: "3" } }
			parameters { key: "share_session_between_instances" value { string_value: "true" } }`, 2, 2, true},
		{"parallel", `parameters { key: "execution_mode" value { string_value: "1" } }
			parameters { key: "inter_op_thread_count" value { string_value: "2" } }`, 1, 1, false},
	}
	b := opened(t, nil)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			started(t, b, spec(t, "addsub", addsubConfig)) // makes what threads Go itself wants
			before := threads(t)
			m, err := b.Load(t.Context(), spec(t, "mlp", mlpConfig+tc.parameters))
			if err != nil {
				t.Fatal(err)
			}
			var all []*instance
			for range tc.instances {
				inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, inst.(*instance))
			}
			// Go may make a thread or two of its own meanwhile; a pool of one thread for
			// each core or instance too many shows all the same.
			if got := threads(t) - before; got < tc.want || got > tc.want+2 {
				t.Errorf("%d threads more, want %d", got, tc.want)
			}
			if got := all[0].own == nil; got != tc.shared {
				t.Errorf("shared session: %v, want %v", got, tc.shared)
			}
			for _, inst := range all {
				if err := inst.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGlobalThreads(t *testing.T) {
	b := opened(t, map[string]string{"enable-global-threadpool": "1", "intra_op_thread_count": "2"})
	inst := started(t, b, spec(t, "addsub", addsubConfig))
	bt := backendtest.NewBatch(backendtest.Request{Rows: 1, Inputs: []infer.Tensor{ramp("INPUT0", 1, 0, 1), ramp("INPUT1", 1, 1, 0)}})
	bt.Run(inst)
	if a := bt.Answers()[0]; a.Err != nil {
		t.Error(a.Err)
	}
}

func TestBadOptions(t *testing.T) {
	for _, set := range []map[string]string{{"intra_op_thread_count": "-1"}, {"inter-op-num-threads": "x"}, {"enable-global-threadpool": "maybe"}} {
		if _, err := New("x")(set); infer.CodeOf(orNil(err)) != infer.InvalidArg {
			t.Errorf("New with %v: %v, want InvalidArg", set, err)
		}
	}
}

func orNil(err error) error {
	if err == nil {
		return fmt.Errorf("no error")
	}
	return err
}

// rss is the process's resident memory in bytes.
func rss(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestLoadAndUnloadLeakNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	b := opened(t, nil)
	s := spec(t, "mlp", mlpConfig)
	cycle := func() {
		m, err := b.Load(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
		if err != nil {
			t.Fatal(err)
		}
		answer(t, inst, 1, infer.Tensor{Name: "X", Datatype: infer.FP32, Shape: []int64{1, 512}, Data: make([]byte, 2048)})
		if err := inst.Close(); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 40 {
		cycle()
	}
	before := rss(t)
	for range 160 {
		cycle()
	}
	// The weights are 7 MB: one model left behind in ten would show.
	if grown := rss(t) - before; grown > 32<<20 {
		t.Errorf("resident memory grew by %d bytes in 160 loads", grown)
	} else {
		t.Logf("resident memory grew by %d bytes in 160 loads", grown)
	}
}

// TestNothingIsReported runs another test in a process with a fresh home folder, where
// ONNX Runtime would leave the identity and the events that it reports.
func TestNothingIsReported(t *testing.T) {
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDescribe$")
	cmd.Env = []string{"HOME=" + home, "SLUICE_ONNXRUNTIME=" + library(t)}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	left, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("the home folder holds %v, want nothing", left)
	}
}

func FuzzStrings(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00a\x00\x00\x00\x00"), int64(1))
	f.Add([]byte("\xff\xff\xff\xff"), int64(1))
	f.Add([]byte{}, int64(1)<<62)
	inst := started(f, opened(f, nil), spec(f, "strings", stringsConfig))
	f.Fuzz(func(t *testing.T, data []byte, rows int64) {
		tensor := infer.Tensor{Name: "A", Datatype: infer.Bytes, Shape: []int64{rows, 2}, Data: data}
		other := tensor
		other.Name = "B"
		b := backendtest.NewBatch(backendtest.Request{Rows: int(rows), Inputs: []infer.Tensor{tensor, other}})
		b.Run(inst)
		elements, err := infer.CountBytesElements(data)
		valid := err == nil && rows >= 0 && rows < 1<<32 && elements == 2*rows && rows > 0
		a := b.Answers()[0]
		if valid != (a.Err == nil) && rows != 0 {
			t.Errorf("rows %d of %x: %v", rows, data, a.Err)
		}
		if faults := b.Faults(); len(faults) > 0 {
			t.Error(faults)
		}
	})
}

func TestConcurrentLoads(t *testing.T) {
	b := opened(t, nil)
	var wg sync.WaitGroup
	for range 4 {
		s := spec(t, "addsub", addsubConfig)
		wg.Go(func() {
			for range 10 {
				m, err := b.Load(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := b.Describe(t.Context(), s); err != nil {
					t.Error(err)
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestClean(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "1", "model.onnx")
	c := cleaner{library: "/usr/lib/ort", model: dir}
	tests := []struct{ name, in, want string }{
		{"model file", "Load model from " + file + " failed: x", "Load model from 1/model.onnx failed: x"},
		{"library", "Failed to load library /usr/lib/ort/libonnxruntime_providers_cuda.so with error: libcudart.so.13: cannot open",
			"Failed to load library libonnxruntime_providers_cuda.so with error: libcudart.so.13: cannot open"},
		{"source", "Exception: /onnxruntime_src/onnxruntime/core/graph/model.cc:181 onnxruntime::Model::Model(const PathString&, int) Unsupported model IR version: 99",
			"Exception: Unsupported model IR version: 99"},
		{"other path", "open '/usr/share/zoneinfo/UTC' failed", "open 'UTC' failed"},
		{"node", "while running Add node. Name:'/encoder/layer.0/Add' Status Message: x", "while running Add node. Name:'/encoder/layer.0/Add' Status Message: x"},
		{"lines", "a\n\tb  c", "a b c"},
	}
	for _, tc := range tests {
		if got := c.clean(tc.in); got != tc.want {
			t.Errorf("%s: clean(%q) = %q, want %q", tc.name, tc.in, got, tc.want)
		}
	}
}
