package ragged

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

func planOf(t testing.TB, config string) *Plan {
	t.Helper()
	cfg := &modelconfig.ModelConfig{}
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatal(err)
	}
	return FromConfig(cfg)
}

// request has one INT8 input R of the shape, its elements counted from first.
func request(first int, shape ...int64) *infer.Request {
	n, err := infer.Elements(shape)
	if err != nil {
		panic(err)
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(first + i)
	}
	return &infer.Request{Inputs: []infer.Tensor{{Name: "R", Datatype: infer.Int8, Shape: shape, Data: data}}}
}

// text is a computed input as numbers.
func text(in *infer.BatchInput) string {
	var numbers []string
	for data := bytes.Join(in.Segments, nil); len(data) >= 4; data = data[4:] {
		bits := binary.LittleEndian.Uint32(data)
		if in.Datatype == infer.FP32 {
			numbers = append(numbers, fmt.Sprint(math.Float32frombits(bits)))
		} else {
			numbers = append(numbers, fmt.Sprint(int32(bits)))
		}
	}
	return fmt.Sprintf("%s %v [%s]", in.Datatype, in.Shape, strings.Join(numbers, " "))
}

func TestCompute(t *testing.T) {
	tests := []struct {
		kind, datatype string
		requests       []*infer.Request
		want           string
	}{
		{"BATCH_ELEMENT_COUNT", "INT32", []*infer.Request{request(0, 1, 3), request(0, 2, 4), request(0, 1, 0)}, "INT32 [3] [3 8 0]"},
		{"BATCH_ELEMENT_COUNT", "FP32", []*infer.Request{request(0, 1, 3), request(0, 1, 5)}, "FP32 [2] [3 5]"},
		{"BATCH_ACCUMULATED_ELEMENT_COUNT", "INT32", []*infer.Request{request(0, 1, 3), request(0, 1, 4), request(0, 1, 5)}, "INT32 [3] [3 7 12]"},
		{"BATCH_ACCUMULATED_ELEMENT_COUNT", "FP32", []*infer.Request{request(0, 1, 3), request(0, 1, 4)}, "FP32 [2] [3 7]"},
		{"BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "INT32", []*infer.Request{request(0, 1, 3), request(0, 1, 4), request(0, 1, 5)}, "INT32 [4] [0 3 7 12]"},
		{"BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "FP32", []*infer.Request{request(0, 1, 3)}, "FP32 [2] [0 3]"},
		{"BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "FP32", []*infer.Request{request(0, 1, 3), request(0, 1, 4), request(0, 1, 2)}, "FP32 [4] [0 0 0 0]"},
		{"BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "INT32", []*infer.Request{request(0, 1, 0)}, "INT32 [0] []"},
		{"BATCH_ITEM_SHAPE", "INT32", []*infer.Request{request(0, 2, 2, 3), request(0, 1, 4, 5)}, "INT32 [3 2] [2 3 2 3 4 5]"},
		{"BATCH_ITEM_SHAPE", "FP32", []*infer.Request{request(0, 1, 2, 3), request(0, 1, 0, 5)}, "FP32 [2 2] [2 3 0 5]"},
		{"BATCH_ITEM_SHAPE_FLATTEN", "INT32", []*infer.Request{request(0, 2, 2, 3), request(0, 1, 4, 5)}, "INT32 [6] [2 3 2 3 4 5]"},
		{"BATCH_ITEM_SHAPE_FLATTEN", "FP32", []*infer.Request{request(0, 1, 7)}, "FP32 [1] [7]"},
	}
	for _, tc := range tests {
		t.Run(tc.kind+" "+tc.datatype, func(t *testing.T) {
			p := planOf(t, fmt.Sprintf(`max_batch_size: 8 batch_input { kind: %s target_name: "A" target_name: "B" data_type: TYPE_%s source_input: "R" }`,
				tc.kind, tc.datatype))
			got, err := p.Compute(nil, tc.requests)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 2 || got[0].Name != "A" || got[1].Name != "B" || got[0].Layout != infer.Computed {
				t.Fatalf("got %+v, want A and B", got)
			}
			for i := range got {
				if have := text(&got[i]); have != tc.want {
					t.Errorf("%s: got %s, want %s", got[i].Name, have, tc.want)
				}
			}
			for _, req := range tc.requests {
				if err := p.Check(req); err != nil {
					t.Errorf("Check: %v", err)
				}
			}
		})
	}
}

// What no INT32 holds is refused before it is in a batch, and a count that only the
// batch makes too large fails the batch.
func TestCountsThatDoNotFit(t *testing.T) {
	empty := func(shape ...int64) *infer.Request {
		return &infer.Request{Inputs: []infer.Tensor{{Name: "R", Datatype: infer.Int8, Shape: shape}}}
	}
	tests := []struct {
		name, kind string
		req        *infer.Request
		want       string
	}{
		{"dimension", "BATCH_ITEM_SHAPE", empty(1, 1<<40, 0), "more than 'A' can tell"},
		{"rows", "BATCH_ITEM_SHAPE_FLATTEN", empty(1<<40, 0), "more rows than 'A' can tell"},
		{"elements", "BATCH_ELEMENT_COUNT", empty(1, 1<<31), "more elements than the 2147483647 that 'A' can count"},
		{"fits", "BATCH_ITEM_SHAPE", empty(1, 1<<31-1, 0), ""},
	}
	for _, tc := range tests {
		p := planOf(t, fmt.Sprintf(`batch_input { kind: %s target_name: "A" data_type: TYPE_INT32 source_input: "R" }`, tc.kind))
		err := p.Check(tc.req)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || infer.CodeOf(err) != infer.InvalidArg) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestLayouts(t *testing.T) {
	if p := planOf(t, `input { name: "A" } output { name: "B" }`); p != nil || p.Layout("A") != infer.ByRow || p.Scatters() {
		t.Errorf("a plain model has the plan %+v, want none", p)
	}
	p := planOf(t, `input { name: "A" allow_ragged_batch: true } input { name: "B" is_shape_tensor: true } input { name: "C" }`)
	for name, want := range map[string]infer.Layout{"A": infer.Ragged, "B": infer.Shared, "C": infer.ByRow, "D": infer.ByRow} {
		if got := p.Layout(name); got != want {
			t.Errorf("layout of %s is %d, want %d", name, got, want)
		}
	}
	two := func(name string, shape []int64, data string) *infer.Request {
		return &infer.Request{Inputs: []infer.Tensor{{Name: name, Datatype: infer.Int8, Shape: shape, Data: []byte(data)}}}
	}
	for _, tc := range []struct {
		input string
		reqs  []*infer.Request
		want  string
	}{
		{"A", []*infer.Request{two("A", []int64{1, 3}, "abc"), two("x", nil, ""), two("A", []int64{2, 1}, "de")}, "[5] [[1 3] [0] [2 1]] abcde"},
		{"B", []*infer.Request{two("B", []int64{2}, "ab"), two("B", []int64{2}, "ab")}, "[2] [] ab"},
		{"C", []*infer.Request{two("C", []int64{1, 2}, "ab"), two("C", []int64{2, 2}, "cdef")}, "[3 2] [] abcdef"},
	} {
		in, err := p.Gather(tc.input, infer.Int8, tc.reqs)
		if got := fmt.Sprintf("%v %v %s", in.Shape, in.Extents, bytes.Join(in.Segments, nil)); err != nil || got != tc.want {
			t.Errorf("%s: got %s, %v, want %s", tc.input, got, err, tc.want)
		}
	}
}

func TestCuts(t *testing.T) {
	p := planOf(t, `max_batch_size: 4 input { name: "R" dims: [-1, 2] allow_ragged_batch: true }
		output { name: "Y" dims: [-1, 2] } output { name: "Z" dims: [3] reshape { shape: [3, 1] } } output { name: "ROWS" dims: [1] }
		batch_output { target_name: "Y" target_name: "Z" source_input: "R" }`)
	reqs := []*infer.Request{request(0, 1, 2, 2), request(0, 2, 1, 2), request(0, 1, 0, 2)}
	c, err := p.Cuts(reqs)
	if err != nil {
		t.Fatal(err)
	}
	if c.Has("ROWS") || !c.Has("Y") || !c.Has("Z") || (*Cuts)(nil).Has("Y") {
		t.Error("Has is wrong")
	}
	y := infer.Tensor{Name: "Y", Datatype: infer.Int8, Shape: []int64{8}, Data: []byte("abcdefgh")}
	z := infer.Tensor{Name: "Z", Datatype: infer.Int8, Shape: []int64{12}, Data: []byte("abcdefghijkl")}
	for i, want := range []string{"[1 2 2] abcd [1 3 1] abc", "[2 1 2] efgh [2 3 1] defghi", "[1 0 2]  [1 3 1] jkl"} {
		a, errA := c.Cut(&y, i)
		b, errB := c.Cut(&z, i)
		if got := fmt.Sprintf("%v %s %v %s", a.Shape, a.Data, b.Shape, b.Data); errA != nil || errB != nil || got != want {
			t.Errorf("request %d: got %s, %v, %v, want %s", i, got, errA, errB, want)
		}
	}
	small := infer.Tensor{Name: "Y", Datatype: infer.Int8, Shape: []int64{7}, Data: []byte("abcdefg")}
	if _, err := c.Cut(&small, 1); infer.CodeOf(err) != infer.Internal {
		t.Errorf("an output that is too small: %v, want Internal", err)
	}
}

// FuzzBatch makes a batch of requests of any shapes and gives every one its own back.
func FuzzBatch(f *testing.F) {
	f.Add([]byte{1, 2, 3, 2, 1, 4, 1, 0, 5}, false)
	f.Add([]byte{1, 1, 1}, true)
	f.Add([]byte{}, false)
	p := planOf(f, `max_batch_size: 64 input { name: "R" dims: [-1, -1] allow_ragged_batch: true } output { name: "Y" dims: [-1, -1] }
		batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS" data_type: TYPE_INT32 source_input: "R" }
		batch_input { kind: BATCH_ITEM_SHAPE target_name: "ITEMS" data_type: TYPE_INT32 source_input: "R" }
		batch_output { target_name: "Y" source_input: "R" }`)
	f.Fuzz(func(t *testing.T, shapes []byte, words bool) {
		var reqs []*infer.Request
		var datatype = infer.Int8
		for n := 0; len(shapes) >= 3 && n < 64; n++ {
			req := request(n, int64(shapes[0]%5), int64(shapes[1]%9), int64(shapes[2]%9))
			if words {
				in := &req.Inputs[0]
				var data []byte
				for _, b := range in.Data {
					data = binary.LittleEndian.AppendUint32(data, uint32(b%4))
					data = append(data, "wxyz"[:b%4]...)
				}
				in.Datatype, in.Data = infer.Bytes, data
				datatype = infer.Bytes
			}
			reqs = append(reqs, req)
			shapes = shapes[3:]
		}
		in, err := p.Gather("R", datatype, reqs)
		if err != nil {
			t.Fatal(err)
		}
		computed, err := p.Compute(nil, reqs)
		if err != nil {
			t.Fatal(err)
		}
		cuts, err := p.Cuts(reqs)
		if err != nil {
			t.Fatal(err)
		}
		out := infer.Tensor{Name: "Y", Datatype: datatype, Shape: in.Shape, Data: bytes.Join(in.Segments, nil)}
		ends := bytes.Join(computed[0].Segments, nil)
		var sum, rows int64
		for i, req := range reqs {
			want := &req.Inputs[0]
			got, err := cuts.Cut(&out, i)
			if err != nil || !bytes.Equal(got.Data, want.Data) || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
				t.Fatalf("request %d: got %v %x, %v, want %v %x", i, got.Shape, got.Data, err, want.Shape, want.Data)
			}
			n, _ := infer.Elements(want.Shape)
			if sum += n; int64(int32(binary.LittleEndian.Uint32(ends[4*i+4:]))) != sum {
				t.Fatalf("request %d ends at %x, want %d", i, ends[4*i+4:], sum)
			}
			rows += want.Shape[0]
		}
		if in.Shape[0] != sum || computed[1].Shape[0] != rows {
			t.Fatalf("the batch has %v elements and %v rows, want %d and %d", in.Shape, computed[1].Shape, sum, rows)
		}
	})
}
