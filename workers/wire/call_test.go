package wire

import (
	"math"
	"reflect"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

func sampleCall() *Call {
	return &Call{ID: 9, Handle: 40, Instance: 2, Batch: 7, Request: 1, Model: "other", Version: "3", RequestID: "r1", Priority: 2,
		Timeout: 5e6, Correlation: infer.Correlation{Str: "s"}, Start: true, End: true, Stream: true,
		Params:  infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindDouble, Double: 0.5}}},
		Outputs: []string{"OUT", "MORE"},
		Inputs: []Output{{Name: "IN", Datatype: infer.FP32, Shape: []int64{1, 2}, Data: Segment{Offset: InAnswers | 64, Length: 8}},
			{Name: "TEXT", Datatype: infer.Bytes, Shape: []int64{1}, Data: Segment{Offset: InAnswers | 128, Length: 5}}}}
}

func sampleAnswer() *Answer {
	return &Answer{ID: 9, Params: infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindString, Str: "x"}}},
		Outputs: []Output{{Name: "OUT", Datatype: infer.Int64, Shape: []int64{3}, Data: Segment{Offset: 192, Length: 24}},
			{Name: "MORE", Datatype: infer.Uint8, Shape: []int64{4}, Data: Segment{Offset: InAnswers | 256, Length: 4}}}}
}

func TestCallRoundTrip(t *testing.T) {
	var c Call
	for range 2 { // the second time into what it holds
		if err := DecodeCall(AppendCall(nil, sampleCall()), &c); err != nil {
			t.Fatal(err)
		}
		if want := sampleCall(); !reflect.DeepEqual(&c, want) {
			t.Errorf("got %+v, want %+v", c, *want)
		}
	}
	var a Answer
	for range 2 {
		if err := DecodeAnswer(AppendAnswer(nil, sampleAnswer()), &a); err != nil {
			t.Fatal(err)
		}
		if want := sampleAnswer(); !reflect.DeepEqual(&a, want) {
			t.Errorf("got %+v, want %+v", a, *want)
		}
	}
}

// Every table that ends early is refused, and those of one kind are not read as others.
func TestCallRefused(t *testing.T) {
	call, answer := AppendCall(nil, sampleCall()), AppendAnswer(nil, sampleAnswer())
	for n := range call {
		if DecodeCall(call[:n], new(Call)) == nil {
			t.Errorf("a call of %d bytes of %d was read", n, len(call))
		}
	}
	for n := range answer {
		if DecodeAnswer(answer[:n], new(Answer)) == nil {
			t.Errorf("an answer of %d bytes of %d was read", n, len(answer))
		}
	}
	if DecodeCall(answer, new(Call)) == nil || DecodeAnswer(call, new(Answer)) == nil || DecodeResult(answer, new(Result)) == nil {
		t.Error("a table was read as one of another kind")
	}
	for name, c := range map[string]*Call{"no id": {Handle: 1}, "timeout": {ID: 1, Timeout: -1}} {
		if err := DecodeCall(AppendCall(nil, c), new(Call)); err == nil {
			t.Errorf("%s: a call was read", name)
		}
		m := CallMessage(c)
		if err := ReadCall(m, new(Call)); err == nil {
			t.Errorf("%s: a message was read", name)
		}
	}
	short := CallMessage(sampleCall())
	short.Tensors = [][]byte{make([]byte, 8)}
	many := AnswerMessage(sampleAnswer())
	many.Tensors = [][]byte{make([]byte, 24), make([]byte, 4), nil}
	if ReadCall(short, new(Call)) == nil || ReadAnswer(many, new(Answer)) == nil || ReadCall(&worker.Call{Id: 1}, new(Call)) == nil {
		t.Error("a message was read whose tensors are too few or too many, or that asks for nothing")
	}
}

func FuzzDecodeCall(f *testing.F) {
	f.Add(AppendCall(nil, sampleCall()))
	f.Add(AppendAnswer(nil, sampleAnswer()))
	f.Fuzz(func(t *testing.T, src []byte) {
		var c, again Call
		if DecodeCall(src, &c) == nil && !hasNaN(c.Params) {
			if err := DecodeCall(AppendCall(nil, &c), &again); err != nil || !reflect.DeepEqual(c, again) {
				t.Errorf("%+v became %+v, %v", c, again, err)
			}
		}
		var a, other Answer
		if DecodeAnswer(src, &a) == nil && a.Err != "" && !hasNaN(a.Params) {
			if err := DecodeAnswer(AppendAnswer(nil, &a), &other); err != nil || !reflect.DeepEqual(a, other) {
				t.Errorf("%+v became %+v, %v", a, other, err)
			}
		}
	})
}

func hasNaN(params infer.Params) bool {
	for i := range params {
		if math.IsNaN(params[i].Value.Double) {
			return true
		}
	}
	return false
}
