package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

var update = flag.Bool("update", false, "write the golden vectors again")

// vectors are what the golden files hold: each as the JSON of its message (NAME.json), and as
// the bytes of the byte table in hexadecimal lines (NAME.table). The tensors of the message are
// not among them: those of the table begin at the offsets that its segments say.
func vectors() map[string]any {
	ragged, placed := raggedBatch(), placedBatch()
	passed := &Result{ID: 3, Outputs: []Output{{Name: "OUT", Datatype: infer.FP32, Shape: []int64{2}, Data: InRegion(5, 64, 8)}}}
	resident := sampleBatch()
	resident.Requests[0].Outputs, resident.Requests[0].Places = []string{"OUT", "TEXT"}, []Segment{Resident, {}}
	resident.Inputs[0].Segments = []Segment{InRegion(FirstResident, 16, 16), InRegion(LastResident, 0, 32)}
	return map[string]any{
		"batch_resident": resident, "result_resident": &Result{ID: 3, Outputs: []Output{{Name: "OUT", Datatype: infer.FP32, Shape: []int64{2},
			Data: InRegion(FirstResident, 0, 8)}}},
		"batch": sampleBatch(), "batch_ragged": ragged, "batch_regions": placed,
		"result": &Result{ID: 7, Outputs: sampleResult().Outputs, Compute: infer.ComputeTimes{Input: 1, Infer: 2, Output: 3}},
		"result_part": &Result{ID: 7, More: true, Responses: []Response{{Index: 1, Outputs: sampleResult().Outputs[:1],
			Params: infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindInt64, Int: 1}}}}}},
		"result_responses": &Result{ID: 7, Responses: []Response{{Index: 1, Final: true, Outputs: sampleResult().Outputs},
			{Index: 0, Final: true, Code: infer.InvalidArg, Err: "bad", Reason: infer.ReasonTooLarge}}},
		"result_goes_on": &Result{ID: 7, More: true, Responses: []Response{{Index: 1, Code: infer.NotFound, Err: "not yet", GoesOn: true}}},
		"result_repeat":  &Result{ID: 7, Responses: []Response{{Index: 0, Repeat: true}}},
		"result_error":   &Result{ID: 7, Code: infer.Unavailable, Err: "no", Reason: infer.ReasonMemory},
		"result_region":  passed,
		"result_free":    &Result{ID: 7, More: true, Free: true},
		"result_read":    &Result{ID: 7, More: true, InputsRead: true},
		"call":           sampleCall(),
		"call_alone":     &Call{ID: 10, Handle: 40, Model: "other"},
		"answer":         sampleAnswer(),
		"answer_error":   &Answer{ID: 9, Final: true, Code: infer.Unavailable, Err: "no", Reason: infer.ReasonMemory},
	}
}

func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case *Batch:
		return BatchMessage(v, 40, 2)
	case *Call:
		return CallMessage(v)
	case *Answer:
		return AnswerMessage(v)
	}
	return ResultMessage(v.(*Result))
}

func tableOf(v any) []byte {
	switch v := v.(type) {
	case *Batch:
		return AppendBatch(nil, v)
	case *Call:
		return AppendCall(nil, v)
	case *Answer:
		return AppendAnswer(nil, v)
	}
	return AppendResult(nil, v.(*Result))
}

// The golden files say what is sent, for those who write a worker in another language; a change
// of them is another protocol.
func TestGolden(t *testing.T) {
	for name, v := range vectors() {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "golden", name)
			if *update {
				writeGolden(t, file, v)
			}
			text, err := os.ReadFile(file + ".json")
			if err != nil {
				t.Fatal(err)
			}
			want := messageOf(v).ProtoReflect().New().Interface()
			if err := protojson.Unmarshal(text, want); err != nil {
				t.Fatal(err)
			}
			if got := messageOf(v); !proto.Equal(got, want) {
				t.Errorf("the message is %v, want %v", got, want)
			}
			lines, err := os.ReadFile(file + ".table")
			if err != nil {
				t.Fatal(err)
			}
			table, err := hex.DecodeString(strings.Join(strings.Fields(string(lines)), ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := tableOf(v); !bytes.Equal(got, table) {
				t.Errorf("the table is\n%x, want\n%x", got, table)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "*"))
	if err != nil || len(files) != 2*len(vectors()) {
		t.Errorf("%d golden files of %d vectors, %v", len(files), len(vectors()), err)
	}
}

func writeGolden(t *testing.T, file string, v any) {
	t.Helper()
	text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(messageOf(v))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(":  "), []byte(": ")) // protojson varies it on purpose
	var table strings.Builder
	for line := range slices.Chunk([]byte(hex.EncodeToString(tableOf(v))), 64) {
		table.Write(line)
		table.WriteByte('\n')
	}
	for ext, data := range map[string]string{".json": string(text) + "\n", ".table": table.String()} {
		if err := os.WriteFile(file+ext, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// tensorsOf are as many bytes as the segments outside of regions have.
func tensorsOf(v any) (tensors [][]byte) {
	add := func(s Segment) {
		if _, _, ok := s.Region(); !ok {
			tensors = append(tensors, make([]byte, s.Length))
		}
	}
	switch v := v.(type) {
	case *Batch:
		for i := range v.Inputs {
			for _, s := range v.Inputs[i].Segments {
				add(s)
			}
		}
		return tensors
	case *Call:
		for i := range v.Inputs {
			add(v.Inputs[i].Data)
		}
		return tensors
	case *Answer:
		for i := range v.Outputs {
			add(v.Outputs[i].Data)
		}
		return tensors
	}
	res := v.(*Result)
	for i := range res.Outputs {
		add(res.Outputs[i].Data)
	}
	for i := range res.Responses {
		for k := range res.Responses[i].Outputs {
			add(res.Responses[i].Outputs[k].Data)
		}
	}
	return tensors
}

// What was read of a message is the message again, and its data stands at the offsets that the
// segments say.
func TestMessagesRoundTrip(t *testing.T) {
	for name, v := range vectors() {
		t.Run(name, func(t *testing.T) {
			want, tensors := messageOf(v), tensorsOf(v)
			var again proto.Message
			switch m := want.(type) {
			case *worker.Call:
				var c Call
				m.Tensors = tensors
				if err := ReadCall(m, &c); err != nil {
					t.Fatal(err)
				}
				m.Tensors, again = nil, CallMessage(&c)
			case *worker.CallAnswer:
				var a Answer
				m.Tensors = tensors
				if err := ReadAnswer(m, &a); err != nil {
					t.Fatal(err)
				}
				m.Tensors, again = nil, AnswerMessage(&a)
			case *worker.Batch:
				var b Batch
				taken, err := ReadBatch(m, tensors, &b)
				if err != nil {
					t.Fatal(err)
				}
				k := 0
				for i := range b.Inputs {
					for _, s := range b.Inputs[i].Segments {
						if _, _, in := s.Region(); !in && int64(len(taken[k])) != s.Length || in && taken[k] != nil {
							t.Errorf("segment %d is %+v, its tensor has %d bytes", k, s, len(taken[k]))
						}
						k++
					}
				}
				if len(taken) != k {
					t.Errorf("%d tensors for %d segments", len(taken), k)
				}
				again = BatchMessage(&b, m.Handle, m.Instance)
			case *worker.Result:
				var res Result
				if err := ReadResult(m, tensors, &res); err != nil {
					t.Fatal(err)
				}
				again = ResultMessage(&res)
			}
			if !proto.Equal(again, want) {
				t.Errorf("got %v, want %v", again, want)
			}
		})
	}
}

// Messages that contradict themselves, or the tensors beside them, are refused.
func TestMessagesRefused(t *testing.T) {
	range_ := func(slot uint32, off, n int64) *worker.Range {
		return &worker.Range{Slot: slot, Offset: off, ByteSize: n}
	}
	for name, change := range map[string]func(m *worker.Batch, tensors *[][]byte){
		"no id":              func(m *worker.Batch, _ *[][]byte) { m.Id = 0 },
		"a tensor too few":   func(_ *worker.Batch, ts *[][]byte) { *ts = (*ts)[1:] },
		"a tensor too many":  func(_ *worker.Batch, ts *[][]byte) { *ts = append(*ts, nil) },
		"a short tensor":     func(_ *worker.Batch, ts *[][]byte) { (*ts)[0] = (*ts)[0][1:] },
		"datatype":           func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].DataType = 99 },
		"no datatype":        func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].DataType = 0 },
		"layout":             func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Layout = -1 },
		"negative dimension": func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Shape = []int64{-3, 4} },
		"rank":               func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Shape = make([]int64, infer.MaxRank+1) },
		"shape":              func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Shape = []int64{1 << 40, 1 << 40} },
		"rows":               func(m *worker.Batch, _ *[][]byte) { m.Rows = 1 << 31 },
		"timeout":            func(m *worker.Batch, _ *[][]byte) { m.Requests[0].TimeoutNs = -1 },
		"parameter":          func(m *worker.Batch, _ *[][]byte) { m.Requests[0].Parameters[0].Value = nil },
		"extents":            func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Layout = worker.Layout_RAGGED },
		"region 0":           func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Segments[0].Region = range_(0, 0, 16) },
		"region's size":      func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Segments[0].Region = range_(1, 0, 15) },
		"slot": func(m *worker.Batch, _ *[][]byte) {
			m.Inputs[0].Segments[0].Region = range_(LastResident+1, 0, 16)
		},
		"region and resident": func(m *worker.Batch, _ *[][]byte) {
			m.Requests[0].Outputs = []*worker.RequestedOutput{{Name: "OUT", Region: range_(1, 0, 16), Resident: true}}
		},
		"region's end": func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Segments[0].Region = range_(1, 1<<41, 16) },
		"nil segment":  func(m *worker.Batch, _ *[][]byte) { m.Inputs[0].Segments[0] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m, tensors := messageOf(sampleBatch()).(*worker.Batch), tensorsOf(sampleBatch())
			change(m, &tensors)
			if _, err := ReadBatch(m, tensors, new(Batch)); err == nil || infer.CodeOf(err) != infer.Internal {
				t.Errorf("got %v, want an internal error", err)
			}
		})
	}
	for name, change := range map[string]func(m *worker.Result, tensors *[][]byte){
		"a tensor too few":  func(_ *worker.Result, ts *[][]byte) { *ts = (*ts)[1:] },
		"a tensor too many": func(_ *worker.Result, ts *[][]byte) { *ts = append(*ts, nil) },
		"a short tensor":    func(_ *worker.Result, ts *[][]byte) { (*ts)[0] = (*ts)[0][1:] },
		"code":              func(m *worker.Result, _ *[][]byte) { m.Error = &worker.Error{Code: 4, Message: "x"} },
		"no code":           func(m *worker.Result, _ *[][]byte) { m.Error = &worker.Error{Message: "x"} },
		"no message":        func(m *worker.Result, _ *[][]byte) { m.Error = &worker.Error{Code: worker.Code_INTERNAL} },
		"duration":          func(m *worker.Result, _ *[][]byte) { m.Compute.Infer = -1 },
		"datatype":          func(m *worker.Result, _ *[][]byte) { m.Outputs[0].DataType = 15 },
		"free at the end":   func(m *worker.Result, _ *[][]byte) { m.Free = true },
		"read at the end":   func(m *worker.Result, _ *[][]byte) { m.InputsRead = true },
	} {
		t.Run("result "+name, func(t *testing.T) {
			v := vectors()["result"]
			m, tensors := messageOf(v).(*worker.Result), tensorsOf(v)
			change(m, &tensors)
			if err := ReadResult(m, tensors, new(Result)); err == nil || infer.CodeOf(err) != infer.Internal {
				t.Errorf("got %v, want an internal error", err)
			}
		})
	}
}

// FuzzMessages holds that whatever is read is written as it was.
func FuzzMessages(f *testing.F) {
	for _, v := range vectors() {
		raw, err := proto.Marshal(messageOf(v))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, 4)
	}
	f.Fuzz(func(t *testing.T, raw []byte, tensors int) {
		data := make([][]byte, min(max(tensors, 0), 16))
		for i := range data {
			data[i] = make([]byte, 16)
		}
		var bm worker.Batch
		var b Batch
		if proto.Unmarshal(raw, &bm) == nil {
			if _, err := ReadBatch(&bm, data, &b); err == nil {
				if err := DecodeBatch(AppendBatch(nil, &b), new(Batch)); err != nil {
					t.Errorf("a batch that was read can't be decoded from the table: %v", err)
				}
			}
		}
		var rm worker.Result
		var res Result
		if proto.Unmarshal(raw, &rm) == nil {
			if err := ReadResult(&rm, data, &res); err == nil {
				if err := DecodeResult(AppendResult(nil, &res), new(Result)); err != nil {
					t.Errorf("a result that was read can't be decoded from the table: %v", err)
				}
			}
		}
	})
}
