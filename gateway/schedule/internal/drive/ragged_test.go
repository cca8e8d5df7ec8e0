package drive_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

const raggedConfig = `max_batch_size: 8
input { name: "R" dims: [-1] allow_ragged_batch: true } input { name: "S" dims: [2] is_shape_tensor: true }
output { name: "Y" dims: [-1] }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "R" }
batch_output { target_name: "Y" source_input: "R" }`

func raggedRequest(id, data, shared string) *infer.Request {
	return &infer.Request{ID: id, Rows: 1, Inputs: []infer.Tensor{
		{Name: "S", Datatype: infer.Int8, Shape: []int64{2}, Data: []byte(shared)},
		{Name: "R", Datatype: infer.Int8, Shape: []int64{1, int64(len(data))}, Data: []byte(data)},
	}}
}

func startRagged(t *testing.T, mem schedule.Memory, execs ...infer.Executor) *dynamic.Scheduler {
	t.Helper()
	cfg := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(raggedConfig), cfg); err != nil {
		t.Fatal(err)
	}
	s, err := dynamic.New(dynamic.Config{Model: schedule.Model{Name: "m", Version: 3, MaxBatchSize: 8, Inputs: []string{"R", "S"},
		Ragged: ragged.FromConfig(cfg)}}, deps(mem, nil, execs...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Requests of different shapes share a batch, in one segment; those with another shared
// tensor don't.
func TestRaggedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory(1 << 20)
		f := &fake{}
		s := startRagged(t, mem, f)
		var answers [5]atomic.Pointer[string]
		ask := func(i int, data, shared string) {
			req := raggedRequest(fmt.Sprint(i), data, shared)
			go func() {
				err := s.Do(context.Background(), req, func(r *infer.Response) error {
					text := fmt.Sprintf("%v%s", r.Outputs[0].Shape, r.Outputs[0].Data)
					answers[i].Store(&text)
					r.Memory.Release()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		ask(0, "-", "xy") // takes the instance
		ask(1, "abc", "xy")
		ask(2, "", "xy")
		ask(3, "defgh", "xy")
		ask(4, "i", "zz")
		twice := func() *infer.Batch {
			b := f.next(t)
			in := bytes.Join(b.Inputs[0].Segments, nil)
			b.Deliver(&infer.Result{Outputs: []infer.Tensor{{Name: "Y", Datatype: infer.Int8, Shape: []int64{int64(len(in))}, Data: bytes.ToUpper(in)}}})
			synctest.Wait()
			return b
		}
		twice()
		b := f.batches[1]
		got := fmt.Sprintf("%v %v %d %v %v %v", b.Inputs[0].Shape, b.Inputs[0].Extents, len(b.Inputs[0].Segments), b.Inputs[1].Shape,
			b.Inputs[1].Segments, b.Inputs[2].Segments)
		if want := "[8] [[1 3] [1 0] [1 5]] 1 [2] [[120 121]] [[3 0 0 0 3 0 0 0 8 0 0 0]]"; got != want {
			t.Errorf("the batch is %s, want %s", got, want)
		}
		twice()
		twice()
		if got, want := f.ids(), "[0 123 4]"; got != want {
			t.Errorf("batches are %s, want %s", got, want)
		}
		for i, want := range []string{"[1 1]-", "[1 3]ABC", "[1 0]", "[1 5]DEFGH", "[1 1]I"} {
			if got := answers[i].Load(); got == nil || *got != want {
				t.Errorf("answer %d is %v, want %s", i, got, want)
			}
		}
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		if n := mem.inUse(); n != 0 {
			t.Errorf("%d bytes are in use", n)
		}
	})
}

// A request that the computed inputs can't tell of is refused alone.
func TestRaggedRequestIsRefusedAlone(t *testing.T) {
	f := &fake{}
	s := startRagged(t, nil, f)
	req := raggedRequest("a", "", "xy")
	req.Inputs[1].Shape = []int64{1, 1 << 31}
	err := s.Do(t.Context(), req, func(*infer.Response) error { return nil })
	if infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v, want InvalidArg", err)
	}
	if f.ids() != "[]" {
		t.Errorf("batches are %s, want none", f.ids())
	}
}

// Without batch dimension a batch is one request, and its output still gets its shape.
func TestRaggedWithoutBatchDimension(t *testing.T) {
	cfg := &modelconfig.ModelConfig{}
	config := strings.Replace(strings.Replace(raggedConfig, "max_batch_size: 8", "", 1), "dims: [-1] }\nbatch_input", "dims: [2, -1] }\nbatch_input", 1)
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatal(err)
	}
	var seen string
	f := &fake{executed: func(b *infer.Batch) {
		seen = fmt.Sprint(b.Rows, b.Inputs[0].Shape, b.Inputs[0].Extents, b.Inputs[2].Segments)
		go b.Deliver(&infer.Result{Outputs: []infer.Tensor{{Name: "Y", Datatype: infer.Int8, Shape: []int64{6}, Data: []byte("ABCDEF")},
			{Name: "Z", Datatype: infer.Int8, Shape: []int64{1}, Data: []byte("z")}}})
	}}
	s, err := direct.New(direct.Config{Model: schedule.Model{Name: "m", Version: 3, Inputs: []string{"R", "S"}, Ragged: ragged.FromConfig(cfg)}},
		deps(newMemory(1<<20), nil, f))
	if err != nil {
		t.Fatal(err)
	}
	req := raggedRequest("a", "abcdef", "xy")
	req.Inputs[1].Shape = []int64{2, 3}
	var got string
	err = s.Do(t.Context(), req, func(r *infer.Response) error {
		for _, o := range r.Outputs {
			got += fmt.Sprintf("%s%v%s ", o.Name, o.Shape, o.Data)
		}
		return nil
	})
	if want := "Y[2 3]ABCDEF Z[1]z "; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if want := "0 [6] [[2 3]] [[6 0 0 0]]"; seen != want {
		t.Errorf("the batch is %s, want %s", seen, want)
	}
}
