package repository

import (
	"context"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
)

// model makes a Model from config text, without workers.
func model(t testing.TB, text string) *Model {
	t.Helper()
	cfg, _, err := modelconfig.Parse("c", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return newModel(&VersionPlan{Spec: LoadSpec{Name: cfg.Name, Version: 1, Config: cfg}}, func() {})
}

var validated = map[string]string{
	"full": `name: "full" backend: "identity" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: 4 } }
		output { name: "OUT" data_type: TYPE_FP32 dims: [2, 2] reshape { shape: 4 } }`,
	"opt": `name: "opt" max_batch_size: 4 input { name: "IN" data_type: TYPE_STRING dims: 2 } input { name: "IN2" data_type: TYPE_FP32 dims: 2 optional: true }
		output { name: "OUT" data_type: TYPE_FP32 dims: -1 }`,
	"flat": `name: "flat" input { name: "A" data_type: TYPE_INT64 dims: [-1, 3] } input { name: "B" data_type: TYPE_BOOL dims: 1 }
		output { name: "OUT" data_type: TYPE_FP32 dims: -1 } dynamic_batching { priority_levels: 2 default_priority_level: 1 }`,
}

func in(name string, dt infer.Datatype, bytes int, shape ...int64) infer.Tensor {
	return infer.Tensor{Name: name, Datatype: dt, Shape: shape, Data: make([]byte, bytes)}
}

func text(name string, data string, shape ...int64) infer.Tensor {
	return infer.Tensor{Name: name, Datatype: infer.Bytes, Shape: shape, Data: []byte(data)}
}

func inputs(t ...infer.Tensor) infer.Request { return infer.Request{Inputs: t} }

const nobody = "[request id: <id_unknown>] "

// The texts are the real server's answers to the same requests.
var requests = []struct {
	name, model string
	req         infer.Request
	want        string
	rows        int
}{
	{"good", "full", inputs(in("IN", infer.FP32, 32, 2, 2, 2)), "", 2},
	{"good bytes", "opt", inputs(text("IN", "\x01\x00\x00\x00a\x00\x00\x00\x00", 1, 2)), "", 1},
	{"good flat", "flat", inputs(in("B", infer.Bool, 1, 1), in("A", infer.Int64, 0, 0, 3)), "", 1},
	{"none", "full", inputs(), nobody + "expected 1 inputs but got 0 inputs for model 'full'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s).", 0},
	{"twice", "full", inputs(in("IN", infer.FP32, 16, 1, 2, 2), in("IN", infer.FP32, 16, 1, 2, 2)), nobody + "input 'IN' already exists in request", 0},
	{"twice of two", "flat", inputs(in("A", infer.Int64, 24, 1, 3), in("A", infer.Int64, 24, 1, 3)), nobody + "input 'A' already exists in request", 0},
	{"unknown", "full", inputs(in("XX", infer.FP32, 16, 1, 2, 2)), "unexpected inference input 'XX' for model 'full'", 0},
	{"no rows", "full", inputs(in("IN", infer.FP32, 0, 0, 2, 2)), nobody + "inference request batch-size must be >= 1 for 'full'", 0},
	{"no shape", "full", inputs(in("IN", infer.FP32, 0)), nobody + "input 'IN' has no shape but model requires batch dimension for 'full'", 0},
	{"too many rows", "full", inputs(in("IN", infer.FP32, 144, 9, 2, 2)), nobody + "inference request batch-size must be <= 8 for 'full'", 0},
	{"negative rows", "full", inputs(in("IN", infer.FP32, 0, -1, 2, 2)), nobody + "inference request batch-size must be <= 8 for 'full'", 0},
	{"datatype", "full", inputs(in("IN", infer.Int32, 16, 1, 2, 2)), nobody + "inference input 'IN' data-type is 'INT32', but model 'full' expects 'FP32'", 0},
	{"shape", "full", inputs(in("IN", infer.FP32, 24, 1, 2, 3)), nobody + "unexpected shape for input 'IN' for model 'full'. Expected [-1,2,2], got [1,2,3]. " + batchNote, 0},
	{"rank", "full", inputs(in("IN", infer.FP32, 16, 2, 2)), nobody + "unexpected shape for input 'IN' for model 'full'. Expected [-1,2,2], got [2,2]. " + batchNote, 0},
	{"shape flat", "flat", inputs(in("A", infer.Int64, 16, 1, 2), in("B", infer.Bool, 1, 1)), nobody + "unexpected shape for input 'A' for model 'flat'. Expected [-1,3], got [1,2]. ", 0},
	{"wildcard", "flat", inputs(in("A", infer.Int64, 16, -1, 3), in("B", infer.Bool, 1, 1)), nobody + "All input dimensions should be specified for input 'A' for model 'flat', got [-1,3]", 0},
	{"negative", "flat", inputs(in("A", infer.Int64, 16, -5, 3), in("B", infer.Bool, 1, 1)), nobody + "input 'A' for model 'flat': shape [-5 3] has a negative dimension", 0},
	{"overflow", "flat", inputs(in("A", infer.Int64, 16, 1<<61, 3), in("B", infer.Bool, 1, 1)), nobody + "input 'A' for model 'flat': shape [2305843009213693952 3] has more than 9223372036854775807 bytes of INT64", 0},
	{"bytes", "full", inputs(in("IN", infer.FP32, 3, 1, 2, 2)), nobody + "input byte size mismatch for input 'IN' for model 'full'. Expected 16, got 3", 0},
	{"optional, none", "opt", infer.Request{ID: "r"}, "[request id: r] expected number of inputs between 1 and 2 but got 0 inputs for model 'opt'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s).", 0},
	{"optional, required missing", "opt", inputs(in("IN2", infer.FP32, 8, 1, 2)), nobody + "expected number of inputs between 1 and 2 but got 1 inputs for model 'opt'. Got input(s) ['IN2'], but missing required input(s) ['IN']. Please provide all required input(s).", 0},
	{"rows differ", "opt", inputs(in("IN2", infer.FP32, 16, 2, 2), text("IN", "", 1, 2)), nobody + "input 'IN' batch size does not match other inputs for 'opt'", 0},
	{"string length", "opt", inputs(text("IN", "aaa", 1, 2)), nobody + "incomplete string length indicator for inference input 'IN' for model 'opt', expecting 4 bytes but only 3 bytes available. Please make sure the string length indicator is in one buffer.", 0},
	{"string early", "opt", inputs(text("IN", "aaaaa", 1, 2)), nobody + "expected 2 string elements for inference input 'IN' for model 'opt', got 1", 0},
	{"strings few", "opt", inputs(text("IN", "\x01\x00\x00\x00a", 1, 2)), nobody + "expected 2 string elements for inference input 'IN' for model 'opt', got 1", 0},
	{"strings many", "opt", inputs(text("IN", "\x01\x00\x00\x00a\x01\x00\x00\x00a\x01\x00\x00\x00a", 1, 2)), nobody + "unexpected number of string elements 3 for inference input 'IN' for model 'opt', expecting 2", 0},
	{"string cut", "opt", inputs(text("IN", "\x01\x00\x00\x00a\x09\x00\x00\x00a", 1, 2)), "incomplete string data for inference input 'IN', expecting string of length 9 but only 1 bytes available", 0},
	{"strings none", "opt", inputs(text("IN", "", 1, 2)), nobody + "expected 2 string elements for inference input 'IN' for model 'opt', got 0", 0},
	{"output", "full", infer.Request{ID: "r", Outputs: []infer.RequestedOutput{{Name: "ZZ"}}}, "unexpected inference output 'ZZ' for model 'full'", 0},
	{"priority", "flat", infer.Request{Priority: 3, Inputs: []infer.Tensor{in("A", infer.Int64, 24, 1, 3), in("B", infer.Bool, 1, 1)}}, nobody + "priority 3 is more than the 2 priority levels of 'flat'", 0},
	{"priority of a step", "flat", infer.Request{Priority: 3, Depth: 1, Inputs: []infer.Tensor{in("A", infer.Int64, 24, 1, 3), in("B", infer.Bool, 1, 1)}}, "", 1},
}

func TestValidate(t *testing.T) {
	for _, row := range requests {
		t.Run(row.name, func(t *testing.T) {
			req := row.req
			req.Inputs = slices.Clone(req.Inputs) // a reshape writes into them, and -count runs the row again
			for i := range req.Inputs {
				req.Inputs[i].Shape = slices.Clone(req.Inputs[i].Shape)
			}
			err := model(t, validated[row.model]).Validate(&req)
			switch {
			case row.want == "" && (err != nil || req.Rows != row.rows):
				t.Errorf("got %v and %d rows, want %d", err, req.Rows, row.rows)
			case row.want == "":
			case err == nil || err.Error() != row.want:
				t.Errorf("got  %v\nwant %s", err, row.want)
			case infer.CodeOf(err) != infer.InvalidArg:
				t.Errorf("code %v", infer.CodeOf(err))
			}
		})
	}
}

func TestOutputsAskedForTwice(t *testing.T) {
	req := inputs(in("IN", infer.FP32, 16, 1, 2, 2))
	req.Outputs = []infer.RequestedOutput{{Name: "OUT", Classification: 1}, {Name: "OUT"}, {Name: "OUT"}}
	if err := model(t, validated["full"]).Validate(&req); err != nil || len(req.Outputs) != 1 || req.Outputs[0].Classification != 1 {
		t.Errorf("%v, %v", err, req.Outputs)
	}
}

func TestReshape(t *testing.T) {
	const config = `name: "m" max_batch_size: 8 input { name: "x" data_type: TYPE_INT8 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] } }
		input { name: "y" data_type: TYPE_INT8 dims: 1 reshape { } } input { name: "z" data_type: TYPE_INT8 dims: -1 reshape { shape: [1, -1] } }
		output { name: "x" data_type: TYPE_INT8 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] } }
		output { name: "y" data_type: TYPE_INT8 dims: 1 reshape { } } output { name: "z" data_type: TYPE_INT8 dims: -1 }`
	m := model(t, config)
	shared := []int64{2, 5, 77, 78} // z's shape and what lies behind it
	req := inputs(in("x", infer.Int8, 288, 2, 2, 4, 3, 6), in("y", infer.Int8, 2, 2, 1),
		infer.Tensor{Name: "z", Datatype: infer.Int8, Shape: shared[:2], Data: make([]byte, 10)})
	if err := m.Validate(&req); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int64{{2, 8, 3, 1, 6}, {2}, {2, 1, 5}} {
		if !slices.Equal(req.Inputs[i].Shape, want) {
			t.Errorf("input %d: got %v, want %v", i, req.Inputs[i].Shape, want)
		}
	}
	if shared[2] != 77 {
		t.Errorf("wrote behind a shape: %v", shared)
	}
	resp := &infer.Response{Outputs: []infer.Tensor{{Name: "x", Shape: []int64{2, 8, 3, 1, 6}}, {Name: "y", Shape: []int64{2}},
		{Name: "z", Shape: []int64{2, 5}}, {Name: "other", Shape: []int64{1}}, {Name: "x", Shape: []int64{1}}}}
	m.Present(resp)
	for i, want := range [][]int64{{2, 2, 4, 3, 6}, {2, 1}, {2, 5}, {1}, {1}} {
		if !slices.Equal(resp.Outputs[i].Shape, want) {
			t.Errorf("output %d: got %v, want %v", i, resp.Outputs[i].Shape, want)
		}
	}
	md := m.metadata([]string{"1"})
	if !slices.Equal(md.Inputs[0].Shape, []int64{-1, 2, 4, -1, 6}) || !slices.Equal(md.Outputs[1].Shape, []int64{-1, 1}) || md.Inputs[0].Datatype != "INT8" {
		t.Errorf("metadata %v", md)
	}
}

func TestRawInput(t *testing.T) {
	for _, row := range []struct {
		config string
		size   int64
		shape  []int64
		want   string
	}{
		{`max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [3, -1] }`, 24, []int64{1, 3, 2}, ""},
		{`input { name: "x" data_type: TYPE_FP32 dims: [2] }`, 8, []int64{2}, ""},
		{`input { name: "x" data_type: TYPE_STRING dims: [1] }`, 99, []int64{1}, ""},
		{`max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [2, 2] }`, 15, nil, nobody + "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 15"},
		{`input { name: "x" data_type: TYPE_FP32 dims: [3, -1] }`, 13, nil, nobody + "input byte size mismatch for input 'raw_input' for model 'm'. Expected 12, got 13"},
		{`input { name: "x" data_type: TYPE_FP32 dims: [-1, -1] }`, 8, nil, nobody + "The shape of the raw input 'x' can not be deduced because there are more than one variable-sized dimension"},
		{`input { name: "x" data_type: TYPE_STRING dims: [-1] }`, 8, nil, nobody + "For BYTE datatype raw input 'x', the model must have input shape [1]"},
		{`input { name: "x" } input { name: "y" }`, 8, nil, nobody + "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration"},
	} {
		got, err := model(t, `name: "m" `+row.config).raw(row.size)
		if row.want != "" && (err == nil || err.Error() != row.want) || row.want == "" && (err != nil || !slices.Equal(got.Shape, row.shape)) {
			t.Errorf("%s, %d bytes: got %v, %v, want %v %s", row.config, row.size, got, err, row.shape, row.want)
		}
	}
}

func FuzzValidate(f *testing.F) {
	f.Add("IN", uint8(infer.FP32), int64(1), int64(2), int64(2), []byte("0123456789abcdef"))
	f.Add("IN", uint8(infer.Bytes), int64(1), int64(2), int64(0), []byte("\x01\x00\x00\x00a\x01\x00\x00\x00a"))
	f.Add("A", uint8(infer.Int64), int64(1<<62), int64(3), int64(0), []byte(nil))
	f.Fuzz(func(t *testing.T, name string, dt uint8, a, b, c int64, data []byte) {
		for model1, config := range validated {
			for _, shape := range [][]int64{{}, {a}, {a, b}, {a, b, c}} {
				req := inputs(infer.Tensor{Name: name, Datatype: infer.Datatype(dt), Shape: shape, Data: data})
				if err := model(t, config).Validate(&req); err == nil && (req.Rows < 1 || req.Rows > 8) {
					t.Errorf("%s: %d rows", model1, req.Rows)
				}
			}
		}
	})
}

func serving(t testing.TB) (*Repository, *infer.Request) {
	r, err := load(t, &fakeWorkers{}, Config{}, map[string]string{"m/1/": "", "m/config.pbtxt": `backend: "identity" max_batch_size: 8
		input { name: "a" data_type: TYPE_FP32 dims: -1 } input { name: "b" data_type: TYPE_STRING dims: 1 } input { name: "c" data_type: TYPE_INT32 dims: [2, 2] reshape { shape: 4 } }
		output { name: "y" data_type: TYPE_FP32 dims: -1 } output { name: "z" data_type: TYPE_FP32 dims: -1 }`})
	if err != nil {
		t.Fatal(err)
	}
	req := inputs(in("c", infer.Int32, 16, 1, 2, 2), in("a", infer.FP32, 512, 1, 128), text("b", "\x03\x00\x00\x00abc", 1, 1))
	req.Model, req.Outputs = "m", []infer.RequestedOutput{{Name: "y"}, {Name: "z"}}
	return r, &req
}

// check is what a request passes before its queue.
func check(ctx context.Context, t testing.TB, r *Repository, req *infer.Request) {
	req.Inputs[0].Shape = append(req.Inputs[0].Shape[:0], 1, 2, 2) // as the client wrote it
	m, err := r.Acquire(ctx, req.Model, req.Version)
	if err == nil {
		err = m.Validate(req)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
}

func TestRequestPathDoesNotAllocate(t *testing.T) {
	r, req := serving(t)
	ctx := t.Context()
	for _, version := range []string{"", "1"} {
		req.Version = version
		if n := testing.AllocsPerRun(100, func() { check(ctx, t, r, req) }); n != 0 {
			t.Errorf("version %q: %v allocations, want 0", version, n)
		}
	}
}

func BenchmarkAcquireValidate(b *testing.B) {
	r, req := serving(b)
	b.ReportAllocs()
	ctx := b.Context()
	for b.Loop() {
		check(ctx, b, r, req)
	}
}

func BenchmarkAcquireValidateParallel(b *testing.B) {
	r, proto := serving(b)
	b.ReportAllocs()
	ctx := b.Context()
	b.RunParallel(func(pb *testing.PB) {
		req := *proto
		req.Inputs = slices.Clone(proto.Inputs)
		req.Inputs[0].Shape = slices.Clone(proto.Inputs[0].Shape)
		for pb.Next() {
			check(ctx, b, r, &req)
		}
	})
}
