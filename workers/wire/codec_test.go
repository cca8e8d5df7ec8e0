package wire

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func sampleBatch() *Batch {
	return &Batch{
		ID:   7,
		Rows: 3,
		Requests: []Request{
			{ID: "a", Rows: 1, Cancel: 0, Timeout: 5000, Outputs: []string{"OUT"}, Params: infer.Params{
				{Name: "b", Value: infer.Value{Kind: infer.KindBool, Bool: true}},
				{Name: "i", Value: infer.Value{Kind: infer.KindInt64, Int: -3}},
				{Name: "u", Value: infer.Value{Kind: infer.KindUint64, Int: -1}},
				{Name: "d", Value: infer.Value{Kind: infer.KindDouble, Double: 0.5}},
				{Name: "s", Value: infer.Value{Kind: infer.KindString, Str: "text"}},
			}},
			{Rows: 2, Cancel: 1, Start: true, End: true, Correlation: infer.Correlation{ID: 9, Str: "seq"}, Params: infer.Params{}, Outputs: []string{}},
		},
		Inputs: []Input{
			{Name: "IN", Datatype: infer.FP32, Shape: []int64{3, 4}, Segments: []Segment{{64, 16}, {128, 32}}},
			{Name: "TEXT", Datatype: infer.Bytes, Shape: []int64{3}, Segments: []Segment{{256, 27}}},
			{Name: "SCALAR", Datatype: infer.Bool, Shape: []int64{}, Segments: []Segment{{0, 1}}},
		},
	}
}

func sampleResult() *Result {
	outputs := []Output{
		{Name: "OUT", Datatype: infer.FP16, Shape: []int64{3, 2}, Data: Segment{0, 12}},
		{Name: "TEXT", Datatype: infer.Bytes, Shape: []int64{3}, Data: Segment{64, 99}},
	}
	return &Result{
		ID: 7, More: true, Code: infer.Unavailable, Err: "no", Outputs: outputs, Compute: infer.ComputeTimes{Input: 1, Infer: 2, Output: 3},
		Responses: []Response{
			{Index: 1, Final: true, Repeat: true, Params: infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindInt64, Int: 1}}}, Outputs: outputs[:1]},
			{Index: 0, Code: infer.InvalidArg, Err: "bad", Params: infer.Params{}, Outputs: []Output{}},
			{Index: 2, Code: infer.NotFound, Err: "not yet", GoesOn: true, Params: infer.Params{}, Outputs: []Output{}},
		},
	}
}

// same compares what is printed, since an empty list and none are the same here.
func same[T any](a, b *T) bool { return fmt.Sprintf("%+v", *a) == fmt.Sprintf("%+v", *b) }

func TestBatchRoundTrip(t *testing.T) {
	want := sampleBatch()
	var got Batch
	for range 2 { // the second time into used memory
		if err := DecodeBatch(AppendBatch(nil, want), &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, want) {
			t.Errorf("got %+v\nwant %+v", &got, want)
		}
	}
}

func TestResultRoundTrip(t *testing.T) {
	want := sampleResult()
	var got Result
	for range 2 {
		if err := DecodeResult(AppendResult(nil, want), &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, want) {
			t.Errorf("got %+v\nwant %+v", &got, want)
		}
	}
}

// A large descriptor leaves nothing behind in a small one that is read after it.
func TestDecodeIntoUsedMemory(t *testing.T) {
	small := &Batch{ID: 8, Requests: []Request{{Params: infer.Params{}, Outputs: []string{}}}, Inputs: []Input{}}
	var got Batch
	for _, b := range []*Batch{sampleBatch(), small, sampleBatch()} {
		if err := DecodeBatch(AppendBatch(nil, b), &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, b) {
			t.Errorf("got %+v\nwant %+v", &got, b)
		}
	}
}

// Every shortened descriptor, and one with a byte too many, is refused.
func TestDecodeTruncated(t *testing.T) {
	batch, result := AppendBatch(nil, sampleBatch()), AppendResult(nil, sampleResult())
	for n := range batch {
		if err := DecodeBatch(batch[:n], new(Batch)); err == nil {
			t.Errorf("batch of %d bytes instead of %d decodes", n, len(batch))
		}
	}
	for n := range result {
		if err := DecodeResult(result[:n], new(Result)); err == nil {
			t.Errorf("result of %d bytes instead of %d decodes", n, len(result))
		}
	}
	if err := DecodeBatch(append(batch, 0), new(Batch)); err == nil {
		t.Error("batch with a byte behind it decodes")
	}
	if err := DecodeBatch(result, new(Batch)); err == nil {
		t.Error("a result decodes as a batch")
	}
}

func TestDecodeRefuses(t *testing.T) {
	batches := map[string]func(*Batch){
		"cancel flag":     func(b *Batch) { b.Requests[0].Cancel = 2 },
		"negative dim":    func(b *Batch) { b.Inputs[0].Shape[0] = -3 },
		"rank":            func(b *Batch) { b.Inputs[0].Shape = make([]int64, infer.MaxRank+1) },
		"datatype":        func(b *Batch) { b.Inputs[0].Datatype = 99 },
		"size":            func(b *Batch) { b.Inputs[0].Segments[0].Length = 8 },
		"segment":         func(b *Batch) { b.Inputs[1].Segments[0].Offset = -1 },
		"segment end":     func(b *Batch) { b.Inputs[1].Segments[0].Offset = 1<<63 - 1 },
		"shape overflow":  func(b *Batch) { b.Inputs[0].Shape = []int64{1 << 40, 1 << 40} },
		"parameter kind":  func(b *Batch) { b.Requests[0].Params[0].Value.Kind = 77 },
		"negative rows":   func(b *Batch) { b.Rows = -1 },
		"segments summed": func(b *Batch) { b.Inputs[0].Segments = []Segment{{0, 1<<63 - 1}, {0, 1<<63 - 1}} },
	}
	for name, change := range batches {
		t.Run(name, func(t *testing.T) {
			b := sampleBatch()
			change(b)
			if err := DecodeBatch(AppendBatch(nil, b), new(Batch)); err == nil {
				t.Error("it decodes")
			} else if infer.CodeOf(err) != infer.Internal {
				t.Errorf("got %v, want an internal error", infer.CodeOf(err))
			}
		})
	}
	results := map[string]func(*Result){
		"duration": func(r *Result) { r.Compute.Infer = -1 },
		"size":     func(r *Result) { r.Outputs[0].Data.Length = 11 },
	}
	for name, change := range results {
		t.Run(name, func(t *testing.T) {
			r := sampleResult()
			change(r)
			if err := DecodeResult(AppendResult(nil, r), new(Result)); err == nil {
				t.Error("it decodes")
			}
		})
	}
}

// A number that the protocol doesn't have is refused, wherever it stands.
func TestDecodeRefusesNumbers(t *testing.T) {
	res := &Result{ID: 1, Code: infer.Unavailable, Err: "no"}
	for n := range 256 {
		src := AppendResult(nil, res)
		src[3] = byte(n)
		_, known := codeFrom(byte(n))
		if err := DecodeResult(src, new(Result)); (err == nil) != (known || n == 0) {
			t.Errorf("code %d: %v", n, err)
		}
	}
	for n := range 256 {
		src := AppendResult(nil, res)
		src[2] = byte(n)
		if err := DecodeResult(src, new(Result)); (err == nil) != (n == 0 || n < 8 && n&bitMore != 0) {
			t.Errorf("bits %d: %v", n, err)
		}
	}
	seen := map[byte]bool{}
	for _, c := range infer.Codes() {
		n := errorNumber(c, "no")
		if back, ok := codeFrom(n); !ok || back != c || seen[n] {
			t.Errorf("code %v is %d, which is %v", c, n, back)
		}
		seen[n] = true
	}
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add(AppendBatch(nil, sampleBatch()))
	f.Add(AppendBatch(nil, raggedBatch()))
	f.Add(AppendBatch(nil, placedBatch()))
	f.Add(AppendBatch(nil, &Batch{}))
	f.Add([]byte{version, kindBatch})
	f.Fuzz(func(t *testing.T, src []byte) {
		var b, again Batch
		if DecodeBatch(src, &b) != nil {
			return
		}
		out := AppendBatch(nil, &b)
		if err := DecodeBatch(out, &again); err != nil {
			t.Fatalf("what was decoded does not decode again: %v", err)
		}
		if !bytes.Equal(out, AppendBatch(nil, &again)) {
			t.Error("the descriptor changed when written again")
		}
	})
}

func FuzzDecodeResult(f *testing.F) {
	f.Add(AppendResult(nil, sampleResult()))
	f.Add(AppendResult(nil, &Result{}))
	f.Add(AppendResult(nil, &Result{More: true, Free: true}))
	f.Add(AppendResult(nil, &Result{More: true, InputsRead: true}))
	f.Fuzz(func(t *testing.T, src []byte) {
		var r, again Result
		if DecodeResult(src, &r) != nil {
			return
		}
		out := AppendResult(nil, &r)
		if err := DecodeResult(out, &again); err != nil {
			t.Fatalf("what was decoded does not decode again: %v", err)
		}
		if !bytes.Equal(out, AppendResult(nil, &again)) {
			t.Error("the descriptor changed when written again")
		}
	})
}

func smallBatch() *Batch {
	return &Batch{ID: 1, Rows: 1, Requests: []Request{{ID: "1", Rows: 1}},
		Inputs: []Input{{Name: "INPUT", Datatype: infer.FP32, Shape: []int64{1, 512}, Segments: []Segment{{0, 2048}}}}}
}

func BenchmarkAppendBatch(b *testing.B) {
	b.ReportAllocs()
	batch, dst := smallBatch(), make([]byte, 0, 1024)
	for b.Loop() {
		dst = AppendBatch(dst[:0], batch)
	}
}

func BenchmarkDecodeBatch(b *testing.B) {
	b.ReportAllocs()
	src := AppendBatch(nil, smallBatch())
	var batch Batch
	for b.Loop() {
		if err := DecodeBatch(src, &batch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeResult(b *testing.B) {
	b.ReportAllocs()
	src := AppendResult(nil, &Result{ID: 1, Outputs: []Output{{Name: "OUTPUT", Datatype: infer.FP32, Shape: []int64{1, 128}, Data: Segment{0, 512}}}})
	var res Result
	for b.Loop() {
		if err := DecodeResult(src, &res); err != nil {
			b.Fatal(err)
		}
	}
}
