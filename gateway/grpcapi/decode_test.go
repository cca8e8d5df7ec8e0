package grpcapi

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

func testService(tb testing.TB, bodies Bodies) *Service {
	tb.Helper()
	s, err := NewService(ServiceConfig{}, Deps{Bodies: bodies})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// cutFrames makes frames of at most n bytes.
func cutFrames(b []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		out = append(out, mem.SliceBuffer(b[:k]))
		b = b[k:]
	}
	return out
}

// fp32Request has one input of n elements.
func fp32Request(n int) *inference.ModelInferRequest {
	raw := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(float32(i)))
	}
	return &inference.ModelInferRequest{ModelName: "m", Inputs: []*inference.ModelInferRequest_InferInputTensor{
		{Name: "IN", Datatype: "FP32", Shape: []int64{1, int64(n)}}}, RawInputContents: [][]byte{raw}}
}

func boolParam(v bool) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: v}}
}
func intParam(v int64) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: v}}
}
func uintParam(v uint64) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: v}}
}
func stringParam(v string) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: v}}
}
func doubleParam(v float64) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: v}}
}

// decodeBoth decodes m by hand, in one piece and in pieces of 7 bytes, and by
// generated code, checks that they agree, and gives the first.
func decodeBoth(t *testing.T, m *inference.ModelInferRequest) *Call {
	t.Helper()
	bodies := &fakeBodies{}
	s := testService(t, bodies)
	b := marshal(t, m)
	byHand := newCall()
	s.decode(byHand, cutFrames(b, len(b)+1))
	pieces := newCall()
	s.decode(pieces, cutFrames(b, 7))
	standard := newCall()
	standard.err = fromMessage(standard, m, bodies)
	for name, other := range map[string]*Call{"in pieces": pieces, "generated": standard} {
		if diff := differ(byHand, other); diff != "" {
			t.Fatalf("decoding by hand and %s differ: %s", name, diff)
		}
	}
	return byHand
}

// differ says how two decoded calls differ; of errors the texts may, since which of
// several faults is told is not fixed.
func differ(a, b *Call) string {
	if (a.err == nil) != (b.err == nil) {
		return "errors " + errText(a.err) + " and " + errText(b.err)
	}
	if a.err != nil {
		return ""
	}
	x, y := &a.Request, &b.Request
	switch {
	case x.ID != y.ID || x.Model != y.Model || x.Version != y.Version:
		return "names"
	case x.Priority != y.Priority || x.Timeout != y.Timeout || x.Correlation != y.Correlation ||
		x.SequenceStart != y.SequenceStart || x.SequenceEnd != y.SequenceEnd || a.emptyFinal != b.emptyFinal:
		return "reserved parameters"
	case !sameParams(x.Params, y.Params):
		return "parameters"
	case len(x.Inputs) != len(y.Inputs) || len(x.Outputs) != len(y.Outputs):
		return "counts"
	}
	for i := range x.Inputs {
		p, q := &x.Inputs[i], &y.Inputs[i]
		if p.Name != q.Name || p.Datatype != q.Datatype || !slices.Equal(p.Shape, q.Shape) || !bytes.Equal(p.Data, q.Data) {
			return "input " + p.Name
		}
	}
	for i := range x.Outputs {
		p, q := &x.Outputs[i], &y.Outputs[i]
		if p.Name != q.Name || p.Classification != q.Classification || !sameParams(p.Params, q.Params) {
			return "output " + p.Name
		}
	}
	return ""
}

func errText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func sameParams(a, b infer.Params) bool {
	key := func(p infer.Params) infer.Params {
		p = slices.Clone(p)
		slices.SortFunc(p, func(x, y infer.Param) int { return strings.Compare(x.Name, y.Name) })
		for i := range p { // NaN equals itself here
			p[i].Value.Int ^= int64(math.Float64bits(p[i].Value.Double))
			p[i].Value.Double = 0
		}
		return p
	}
	return slices.Equal(key(a), key(b))
}

func TestDecodeReadsEveryField(t *testing.T) {
	m := fp32Request(3)
	m.ModelVersion, m.Id = "2", "r1"
	m.Parameters = map[string]*inference.InferParameter{"sequence_id": stringParam("s"), "sequence_start": boolParam(true),
		"sequence_end": boolParam(true), "priority": uintParam(3), "timeout": intParam(1500), "triton_enable_empty_final_response": boolParam(true),
		"b": boolParam(true), "i": intParam(-4), "s": stringParam("text"), "d": doubleParam(0.5)}
	m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT", Parameters: map[string]*inference.InferParameter{
		"classification": intParam(2), "other": stringParam("x")}}, {Name: "OUT2"}}
	c := decodeBoth(t, m)
	if c.err != nil {
		t.Fatal(c.err)
	}
	r := &c.Request
	if r.Model != "m" || r.Version != "2" || r.ID != "r1" || r.Priority != 3 || r.Timeout.Microseconds() != 1500 ||
		r.Correlation.Str != "s" || !r.SequenceStart || !r.SequenceEnd || !c.emptyFinal || len(r.Params) != 4 {
		t.Fatalf("decoded %+v", r)
	}
	if v, ok := r.Params.Get("d"); !ok || v.Kind != infer.KindDouble || v.Double != 0.5 {
		t.Fatalf("parameter d is %+v", v)
	}
	if r.Outputs[0].Classification != 2 || len(r.Outputs[0].Params) != 1 || !bytes.Equal(r.Inputs[0].Data, m.RawInputContents[0]) {
		t.Fatalf("decoded %+v", r)
	}
}

func TestDecodeTypedContents(t *testing.T) {
	type contents = inference.InferTensorContents
	for _, test := range []struct {
		datatype string
		contents *contents
		want     string
	}{
		{"BOOL", &contents{BoolContents: []bool{true, false}}, "\x01\x00"},
		{"INT8", &contents{IntContents: []int32{1, -2}}, "\x01\xfe"},
		{"INT16", &contents{IntContents: []int32{1, -2}}, "\x01\x00\xfe\xff"},
		{"INT32", &contents{IntContents: []int32{1, -2}}, "\x01\x00\x00\x00\xfe\xff\xff\xff"},
		{"INT64", &contents{Int64Contents: []int64{-2}}, "\xfe\xff\xff\xff\xff\xff\xff\xff"},
		{"UINT8", &contents{UintContents: []uint32{1, 255}}, "\x01\xff"},
		{"UINT16", &contents{UintContents: []uint32{65535}}, "\xff\xff"},
		{"UINT32", &contents{UintContents: []uint32{1 << 31}}, "\x00\x00\x00\x80"},
		{"UINT64", &contents{Uint64Contents: []uint64{1 << 63}}, "\x00\x00\x00\x00\x00\x00\x00\x80"},
		{"FP32", &contents{Fp32Contents: []float32{1}}, "\x00\x00\x80\x3f"},
		{"FP64", &contents{Fp64Contents: []float64{1}}, "\x00\x00\x00\x00\x00\x00\xf0\x3f"},
		{"BYTES", &contents{BytesContents: [][]byte{[]byte("a"), nil, []byte("bc")}}, "\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc"},
		{"FP32", &contents{}, ""},
	} {
		t.Run(test.datatype, func(t *testing.T) {
			m := fp32Request(1)
			m.RawInputContents = nil
			m.Inputs[0].Datatype, m.Inputs[0].Contents = test.datatype, test.contents
			c := decodeBoth(t, m)
			if c.err != nil || string(c.Request.Inputs[0].Data) != test.want {
				t.Fatalf("got %q, %v, want %q", c.Request.Inputs[0].Data, c.err, test.want)
			}
		})
	}
}

// faults are messages that must be refused; the texts are the original's where it
// refuses them too.
var faults = []struct {
	name   string
	change func(*inference.ModelInferRequest)
	code   infer.Code
	text   string
}{
	{"sequence_id bool", param1("sequence_id", boolParam(true)), infer.InvalidArg, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."},
	{"sequence_start int", param1("sequence_start", intParam(1)), infer.InvalidArg, "invalid value type for 'sequence_start' parameter, expected bool_param."},
	{"sequence_end none", param1("sequence_end", &inference.InferParameter{}), infer.InvalidArg, "invalid value type for 'sequence_end' parameter, expected bool_param."},
	{"priority string", param1("priority", stringParam("1")), infer.InvalidArg, "invalid value type for 'priority' parameter, expected int64_param or uint64_param."},
	{"priority negative", param1("priority", intParam(-1)), infer.InvalidArg, "invalid value for 'priority', expected value >= 0."},
	{"timeout uint64", param1("timeout", uintParam(1)), infer.InvalidArg, "invalid value type for 'timeout' parameter, expected int64_param."},
	{"custom uint64", param1("u", uintParam(1)), infer.InvalidArg, "invalid value type for 'u' parameter, expected int64_param, bool_param, or string_param."},
	{"custom none", param1("u", &inference.InferParameter{}), infer.InvalidArg, "invalid value type for 'u' parameter, expected int64_param, bool_param, or string_param."},
	{"triton prefix", param1("triton_x", boolParam(true)), infer.InvalidArg, "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response"},
	{"empty final", param1("triton_enable_empty_final_response", intParam(1)), infer.InvalidArg, "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."},
	{"classification string", output1("classification", stringParam("1")), infer.InvalidArg, "invalid value type for 'classification' parameter, expected int64_param"},
	{"classification 0", output1("classification", intParam(0)), infer.InvalidArg, "invalid value for 'classification' parameter, expected >= 0"},
	{"output region", output1("shared_memory_byte_size", intParam(8)), infer.InvalidArg, "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'OUT'"},
	{"no data", func(m *inference.ModelInferRequest) { m.RawInputContents = nil }, infer.InvalidArg, "unable to find data for input tensor 'IN' for model 'm' in request."},
	{"too little raw", func(m *inference.ModelInferRequest) {
		m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: "B"})
	}, infer.InvalidArg, "unable to find data for input tensor 'B' for model 'm' in request."},
	{"raw and contents", func(m *inference.ModelInferRequest) { m.Inputs[0].Contents = &inference.InferTensorContents{} }, infer.InvalidArg,
		"contents field must not be specified when using raw_input_contents for 'IN' for model 'm'"},
	{"contents of FP16", typed("FP16", &inference.InferTensorContents{Fp32Contents: []float32{1}}), infer.InvalidArg,
		"unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'FP32', expected datatype 'FP16'"},
	{"two contents", typed("FP32", &inference.InferTensorContents{IntContents: []int32{1}, Fp32Contents: []float32{1}}), infer.InvalidArg,
		"unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'INT32', expected datatype 'FP32'"},
	{"contents of nothing known", typed("FLOAT", &inference.InferTensorContents{Fp32Contents: []float32{1}}), infer.InvalidArg,
		"unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'FP32', expected datatype '<invalid>'"},
	{"INT8 out of range", typed("INT8", &inference.InferTensorContents{IntContents: []int32{128}}), infer.InvalidArg, "input 'IN': value 128 does not fit datatype INT8"},
	{"UINT16 out of range", typed("UINT16", &inference.InferTensorContents{UintContents: []uint32{65536}}), infer.InvalidArg, "input 'IN': value 65536 does not fit datatype UINT16"},
	{"shared memory with contents", func(m *inference.ModelInferRequest) {
		m.Inputs[0].Parameters = map[string]*inference.InferParameter{"shared_memory_region": stringParam("r"), "shared_memory_byte_size": intParam(4)}
		m.RawInputContents, m.Inputs[0].Contents = nil, &inference.InferTensorContents{Fp32Contents: []float32{1}}
	}, infer.InvalidArg, "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'm'"},
	{"shared memory, size no number", func(m *inference.ModelInferRequest) {
		m.Inputs[0].Parameters = map[string]*inference.InferParameter{"shared_memory_region": stringParam("r"), "shared_memory_byte_size": stringParam("4")}
	}, infer.InvalidArg, "invalid value type for 'shared_memory_byte_size' parameter for tensor 'IN', expected int64_param."},
	{"shared memory without size", func(m *inference.ModelInferRequest) {
		m.Inputs[0].Parameters = map[string]*inference.InferParameter{"shared_memory_region": stringParam("r")}
	}, infer.InvalidArg, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'IN'"},
	{"rank", func(m *inference.ModelInferRequest) { m.Inputs[0].Shape = make([]int64, 33) }, infer.InvalidArg, "shape has more than 32 dimensions"},
	{"inputs", func(m *inference.ModelInferRequest) {
		for range maxInputs {
			m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{})
		}
	}, infer.InvalidArg, "request has more than 1024 inputs"},
}

func param1(name string, v *inference.InferParameter) func(*inference.ModelInferRequest) {
	return func(m *inference.ModelInferRequest) { m.Parameters = map[string]*inference.InferParameter{name: v} }
}

func output1(name string, v *inference.InferParameter) func(*inference.ModelInferRequest) {
	return func(m *inference.ModelInferRequest) {
		m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT", Parameters: map[string]*inference.InferParameter{name: v}}}
	}
}

func typed(datatype string, contents *inference.InferTensorContents) func(*inference.ModelInferRequest) {
	return func(m *inference.ModelInferRequest) {
		m.RawInputContents = nil
		m.Inputs[0].Datatype, m.Inputs[0].Contents = datatype, contents
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, test := range faults {
		t.Run(test.name, func(t *testing.T) {
			m := fp32Request(1)
			test.change(m)
			c := decodeBoth(t, m)
			if c.err == nil || c.err.Error() != test.text || infer.CodeOf(c.err) != test.code {
				t.Fatalf("got %v, want %v: %s", c.err, test.code, test.text)
			}
		})
	}
}

func TestDecodeMalformed(t *testing.T) {
	good := marshal(t, fp32Request(4))
	for name, b := range map[string][]byte{
		"end of field":     {0xff, 0xff},
		"truncated":        good[:len(good)-3],
		"text":             {0x0a, 0x02, 0xff, 0xfe},
		"field 0":          {0x00, 0x01},
		"open group":       {0x0b},
		"close group":      {0x0c},
		"length":           {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"in input":         {0x2a, 0x02, 0x0a, 0x09},
		"in packed shape":  {0x2a, 0x03, 0x1a, 0x01, 0xff},
		"in parameter":     {0x22, 0x02, 0x0a, 0x09},
		"in output":        {0x32, 0x02, 0x0a, 0x09},
		"in contents":      {0x2a, 0x06, 0x12, 0x00, 0x2a, 0x02, 0x32, 0x01},
		"wire type 7":      {0x0f},
		"overlong varints": bytes.Repeat([]byte{0xff}, 12),
	} {
		t.Run(name, func(t *testing.T) {
			if err := proto.Unmarshal(b, &inference.ModelInferRequest{}); err == nil {
				t.Fatal("protobuf reads it")
			}
			for _, n := range []int{1, 100} {
				c := newCall()
				testService(t, &fakeBodies{}).decode(c, cutFrames(b, n))
				if c.err == nil || infer.CodeOf(c.err) != infer.Internal || c.err.Error() != "Unable to parse request" {
					t.Errorf("frames of %d bytes: %v", n, c.err)
				}
			}
		})
	}
}

func TestDecodeRawBeforeInputsAndUnknownFields(t *testing.T) {
	m := fp32Request(2)
	raws := m.RawInputContents
	m.RawInputContents = nil
	var b []byte
	b = protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), raws[0])
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 3) // wrong wire type: unknown
	b = protowire.AppendBytes(protowire.AppendTag(b, 99, protowire.BytesType), []byte("what"))
	b = append(b, marshal(t, m)...)
	b = protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), []byte("beyond the inputs"))
	for _, n := range []int{1, 5, 1000} {
		c := newCall()
		testService(t, &fakeBodies{}).decode(c, cutFrames(b, n))
		if c.err != nil || !bytes.Equal(c.Request.Inputs[0].Data, raws[0]) {
			t.Fatalf("frames of %d bytes: %v, %x", n, c.err, c.Request.Inputs[0].Data)
		}
	}
	grouped := append([]byte{0x9b, 0x06, 0x9c, 0x06}, b...) // a group of number 99 before it
	c := newCall()
	testService(t, &fakeBodies{}).decode(c, cutFrames(grouped, 5))
	if c.err != nil || !bytes.Equal(c.Request.Inputs[0].Data, raws[0]) {
		t.Fatalf("with a group: %v", c.err)
	}
}

func TestDecodeLargeIsCopiedOnceAndAligned(t *testing.T) {
	bodies := &fakeBodies{}
	s := testService(t, bodies)
	m := fp32Request(20_000)
	m.Inputs = append(m.Inputs, m.Inputs[0], m.Inputs[0])
	m.RawInputContents = append(m.RawInputContents, []byte("abc"), m.RawInputContents[0])
	c := newCall()
	s.decode(c, cutFrames(marshal(t, m), 16<<10))
	if c.err != nil {
		t.Fatal(c.err)
	}
	if n := bodies.calls.Load(); n != 1 {
		t.Fatalf("memory was asked %d times, want once", n)
	}
	at := 0
	for i, want := range m.RawInputContents {
		got := c.Request.Inputs[i].Data
		if !bytes.Equal(got, want) || &got[0] != &c.Request.Memory.Data[at] {
			t.Fatalf("input %d is not where it should be", i)
		}
		at += int(alignUp(int64(len(want))))
	}
	c.release()
	if bodies.out.Load() != 0 {
		t.Fatalf("%d bytes are still out", bodies.out.Load())
	}
}

func TestDecodeLargeTypedContents(t *testing.T) {
	bodies := &fakeBodies{}
	s := testService(t, bodies)
	m := fp32Request(200_000)
	want := m.RawInputContents[0]
	typed("FP32", &inference.InferTensorContents{Fp32Contents: make([]float32, 200_000)})(m)
	for i := range m.Inputs[0].Contents.Fp32Contents {
		m.Inputs[0].Contents.Fp32Contents[i] = float32(i)
	}
	c := newCall()
	s.decode(c, cutFrames(marshal(t, m), 16<<10))
	if c.err != nil || !bytes.Equal(c.Request.Inputs[0].Data, want) {
		t.Fatalf("decoded wrong: %v", c.err)
	}
	if out := bodies.out.Load(); out != int64(len(want)) {
		t.Fatalf("%d bytes are out, want the tensor's %d alone", out, len(want))
	}
	c.release()
}

// A message that is little but a tensor in raw contents is quick to start, whatever its size,
// and one whose numbers have to be written anew is not, nor one with much else behind a little
// tensor: fields come in any order. In memory, its first tensor is aligned.
func TestQuickMessages(t *testing.T) {
	const most = 1 << 10 // what the transport shows
	raw, numbers := fp32Request(200_000), fp32Request(200_000)
	typed("FP32", &inference.InferTensorContents{Fp32Contents: make([]float32, 200_000)})(numbers)
	first := protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), make([]byte, 4*tensorAlign))
	h := &hotCall{}
	h.s = testService(t, &fakeBodies{})
	for _, tc := range []struct {
		name    string
		message []byte
		want    bool
	}{{"raw", marshal(t, raw), true}, {"raw first", append(slices.Clone(first), marshal(t, raw)...), false},
		{"typed behind raw", append(first, marshal(t, numbers)...), false},
		{"typed", marshal(t, numbers), false}, {"nonsense", bytes.Repeat([]byte{0xff}, most), false}, {"nothing", nil, false}} {
		memory, err := h.Memory(int64(len(tc.message)), tc.message[:min(most, len(tc.message))])
		if err != nil {
			t.Fatal(err)
		}
		if h.Quick() != tc.want {
			t.Errorf("%s: quick %v, want %v", tc.name, h.Quick(), tc.want)
		}
		raw, _ := firstRaw(tc.message[:min(most, len(tc.message))])
		if at := int64(len(memory.Data)-len(tc.message)) + raw; tc.want && at%tensorAlign != 0 {
			t.Errorf("%s: the tensor is at %d", tc.name, at)
		}
		memory.Release()
	}
}

func TestDecodeWithoutMemory(t *testing.T) {
	refused := infer.Refusef(infer.Unavailable, infer.ReasonMemory, "full")
	s := testService(t, &fakeBodies{fail: refused})
	c := newCall()
	s.decode(c, cutFrames(marshal(t, fp32Request(20_000)), 16<<10))
	if c.err != refused || c.Request.Model == "" {
		t.Fatalf("got %v for model '%s', want the refusal and the model, which is counted", c.err, c.Request.Model)
	}
}

// A call whose message finds no memory never reaches Infer, and is counted all the same.
func TestRefusedMessageIsCounted(t *testing.T) {
	p := &fakePipeline{}
	s := testService(t, &fakeBodies{})
	s.pipeline = p
	c := newCall()
	c.Request.Model = "m"
	full := infer.Refusef(infer.Unavailable, infer.ReasonMemory, "full")
	if err := s.serve(t.Context(), c, func() error { return full }); err != full {
		t.Fatalf("got %v", err)
	}
	if r := p.refused.Load(); r == nil || r.model != "m" || r.err != full {
		t.Errorf("the pipeline was told of %+v", r)
	}
}

// poolOf counts what was put back.
type poolOf struct{ put int }

func (p *poolOf) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *poolOf) Put(*[]byte)       { p.put++ }

func TestDecodeSmallKeepsTheFrame(t *testing.T) {
	bodies := &fakeBodies{}
	s := testService(t, bodies)
	b := marshal(t, fp32Request(1000))
	pool := &poolOf{}
	data := mem.BufferSlice{mem.NewBuffer(&b, pool)}
	c := newCall()
	s.decode(c, data)
	data.Free() // as grpc-go does once the message is decoded
	if c.err != nil || pool.put != 0 || bodies.calls.Load() != 0 {
		t.Fatalf("err %v, %d buffers back, %d bodies", c.err, pool.put, bodies.calls.Load())
	}
	c.Request.Memory.Retain() // a batch in flight
	memory := c.Request.Memory
	c.release()
	if pool.put != 0 {
		t.Fatal("the frame went back under a reader")
	}
	memory.Release()
	if pool.put != 1 {
		t.Fatal("the frame did not go back")
	}
}

func FuzzDecode(f *testing.F) {
	m := fp32Request(3)
	m.Parameters = map[string]*inference.InferParameter{"a": intParam(1), "sequence_id": intParam(2)}
	m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "O", Parameters: map[string]*inference.InferParameter{"classification": intParam(1)}}}
	f.Add(marshal(f, m), 9)
	for _, test := range faults[:len(faults)-2] {
		m := fp32Request(1)
		test.change(m)
		f.Add(marshal(f, m), 5)
	}
	f.Add([]byte{0x9b, 0x06, 0x9c, 0x06, 0x3a, 0x01, 0x00}, 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n = 1 + (n&0xffff)%(len(b)+2)
		bodies := &fakeBodies{}
		s := testService(t, bodies)
		standard := newCall()
		var m inference.ModelInferRequest
		if standard.err = proto.Unmarshal(b, &m); standard.err == nil {
			standard.err = fromMessage(standard, &m, bodies)
		}
		for _, size := range []int{len(b) + 1, len(b) + 1, n} { // the second time its head is known
			c := newCall()
			s.decode(c, cutFrames(b, size))
			if diff := differ(c, standard); diff != "" {
				t.Fatalf("frames of %d bytes: %s", size, diff)
			}
			c.release()
		}
		standard.release()
		if out := bodies.out.Load(); out != 0 {
			t.Fatalf("%d bytes are still out", out)
		}
	})
}
