package httpapi

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"unsafe"

	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
)

// stream is a call's body in pieces, of unknown length unless told.
func stream(a *API, ctx context.Context, length int64, body io.Reader, h header) answer {
	var r Reply
	if h == nil {
		h = header{}
	}
	a.Serve(ctx, &Call{Method: "POST", Path: "/v2/models/m/infer", Header: h, Body: body, Length: length}, &r)
	return read(&r)
}

// binaryRequest asks for n FP32 back as binary.
func binaryRequest(n int) (head string, data []byte) {
	data = make([]byte, 4*n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return fmt.Sprintf(`{"id":"b","inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`, n, 4*n), data
}

func TestBinaryBodies(t *testing.T) {
	for _, n := range []int{1, 16, 5000, 300_000, 1_300_000} { // under and over each step of memory
		head, data := binaryRequest(n)
		h := header{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
		whole := head + string(data)
		var gz, zl bytes.Buffer
		g := gzip.NewWriter(&gz)
		_, _ = io.WriteString(g, whole)
		_ = g.Close()
		z := zlib.NewWriter(&zl)
		_, _ = io.WriteString(z, whole)
		_ = z.Close()
		with := func(encoding string) header {
			return header{"Inference-Header-Content-Length": fmt.Sprint(len(head)), "Content-Encoding": encoding}
		}
		for _, c := range []struct {
			name   string
			length int64
			body   io.Reader
			h      header
		}{
			{"known", int64(len(whole)), strings.NewReader(whole), h},
			{"chunked", -1, io.MultiReader(strings.NewReader(whole[:7]), strings.NewReader(whole[7:])), h},
			{"gzip", int64(gz.Len()), bytes.NewReader(gz.Bytes()), with("gzip")},
			{"deflate", -1, bytes.NewReader(zl.Bytes()), with("deflate")},
		} {
			f := &fake{}
			got := stream(newFakeAPI(f, APIConfig{}), t.Context(), c.length, c.body, c.h)
			if got.status != 200 || got.length < 0 || got.typ != typeBinary || got.body[got.length:] != string(data) {
				t.Errorf("%s, %d elements: got %d, length %d, %.200s", c.name, n, got.status, got.length, got.body)
			}
			if held := f.held.Load(); held != 0 {
				t.Errorf("%s, %d elements: %d bytes are still held", c.name, n, held)
			}
		}
	}
}

func TestTensorsAreAligned(t *testing.T) {
	head := `{"inputs":[{"name":"a","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}},` +
		`{"name":"b","shape":[2],"datatype":"FP64","data":[1,2]},` +
		`{"name":"c","shape":[1],"datatype":"FP64","parameters":{"binary_data_size":8}}]}`
	f := &fake{}
	f.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(req.Memory.Data)))
		for _, in := range req.Inputs {
			if off := uintptr(unsafe.Pointer(unsafe.SliceData(in.Data))) - base; off%align != 0 {
				t.Errorf("%s lies at %d", in.Name, off)
			}
		}
		if string(req.Inputs[0].Data) != "abc" || string(req.Inputs[2].Data) != "12345678" || req.Inputs[1].Data[7] != 0x3f {
			t.Errorf("got %v", req.Inputs)
		}
		return send(&infer.Response{Final: true})
	}
	got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/models/m/infer", head+"abc12345678",
		header{"Inference-Header-Content-Length": fmt.Sprint(len(head))})
	if got.status != 200 {
		t.Errorf("got %+v", got)
	}
}

// hungry is a body that ends after what it has, whatever was announced.
type hungry struct{ left int }

func (h *hungry) Read(p []byte) (int, error) {
	if h.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), h.left)
	h.left -= n
	return n, nil
}

func TestMemoryFollowsWhatArrives(t *testing.T) {
	const announced = 1 << 30
	head := fmt.Sprintf(`{"inputs":[{"name":"I","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}]}`, announced, announced)
	for _, arrives := range []int{0, 1000, 2 << 20} {
		f := &fake{}
		body := io.MultiReader(strings.NewReader(head), &hungry{arrives})
		got := stream(newFakeAPI(f, APIConfig{}), t.Context(), int64(len(head))+announced, body,
			header{"Inference-Header-Content-Length": fmt.Sprint(len(head))})
		if got.status != 400 || !strings.Contains(got.body, "the request body ended after") {
			t.Errorf("%d bytes: got %+v", arrives, got)
		}
		// old and new memory stand side by side while it grows
		if most := f.most.Load(); most > firstStep+growth*max(firstStep, int64(arrives)) {
			t.Errorf("%d bytes made %d be taken", arrives, most)
		}
		if arrives <= 1000 && f.most.Load() > firstStep {
			t.Errorf("%d bytes made %d be taken", arrives, f.most.Load())
		}
		if held := f.held.Load(); held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
	}
}

func TestLimits(t *testing.T) {
	a := newFakeAPI(&fake{}, APIConfig{Limits: Limits{MaxJSON: 1000, MaxBody: 5000, MaxRatio: 10}})
	pad := `{"inputs":[]` + strings.Repeat(" ", 2000) + "}"
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = io.WriteString(g, pad)
	_ = g.Close()
	var small bytes.Buffer
	g = gzip.NewWriter(&small)
	_, _ = io.WriteString(g, `{"inputs":[]}`)
	_ = g.Close()
	const tooLarge = "exceeds the maximum allowed input size of 1000 bytes. Use --http-max-input-size to increase the limit."
	for _, c := range []struct {
		name   string
		length int64
		body   string
		h      header
		want   string
	}{
		{"json", int64(len(pad)), pad, nil, "request JSON size of 2013 bytes " + tooLarge},
		{"chunked json", -1, pad, nil, "request JSON size of 1001 bytes " + tooLarge},
		{"decompressed json", int64(gz.Len()), gz.String(), header{"Content-Encoding": "gzip"}, "request JSON size of 1001 bytes " + tooLarge},
		{"body", 5001, "", nil, "request body size of 5001 bytes exceeds the maximum allowed size of 5000 bytes"},
		{"raw chunked", -1, strings.Repeat("x", 6000), header{"Inference-Header-Content-Length": "0"}, "request body size of 5001 bytes"},
		{"header length", 10, "", header{"Inference-Header-Content-Length": "99999999999999999999"}, "should be in range (0, 10), got: 9999"},
		{"bad gzip", 3, "abc", header{"Content-Encoding": "gzip"}, "the request body is no valid gzip data"},
		{"cut gzip", int64(small.Len() - 9), small.String()[:small.Len()-9], header{"Content-Encoding": "gzip"}, "no valid gzip data"},
	} {
		got := stream(a, t.Context(), c.length, strings.NewReader(c.body), c.h)
		if got.status != 400 || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: got %d %s, want %s", c.name, got.status, got.body, c.want)
		}
	}
}

func TestDecompressionRatio(t *testing.T) {
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(make([]byte, 20<<20))
	_ = g.Close()
	f := &fake{}
	got := stream(newFakeAPI(f, APIConfig{}), t.Context(), int64(gz.Len()), &gz,
		header{"Content-Encoding": "gzip", "Inference-Header-Content-Length": "0"})
	if got.status != 400 || !strings.Contains(got.body, "more than 256 times its size") || got.fields[ReasonHeader] != "too_large" {
		t.Errorf("got %+v", got)
	}
	if held := f.held.Load(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

func TestUnknownEncoding(t *testing.T) {
	for _, e := range []string{"br", "GZIP", "gzip, deflate"} {
		got := stream(newFakeAPI(&fake{}, APIConfig{}), t.Context(), 2, strings.NewReader("{}"), header{"Content-Encoding": e})
		if got.status != 501 || got.body != `{"error":"Unsupported compression type"}` || got.fields["Accept-Encoding"] != "gzip, deflate" {
			t.Errorf("%s: got %+v", e, got)
		}
	}
}

func TestAcceptEncoding(t *testing.T) {
	for h, want := range map[string]string{"": "", "gzip": "gzip", "deflate": "deflate", "gzip, deflate": "gzip", "deflate, gzip": "deflate",
		"gzip;q=0": "", "*": "", "identity": "", "br": "", "gzip;q=0.1, deflate;q=0.9": "deflate", "identity;q=0, gzip": "gzip",
		"x-gzip": "", "GZIP": "gzip", "gzip;q=x": "", ",,;": ""} {
		if got := acceptEncoding(h); got != want {
			t.Errorf("%q: got %q, want %q", h, got, want)
		}
	}
}

func TestCompressedAnswers(t *testing.T) {
	head, data := binaryRequest(10_000)
	a := newFakeAPI(&fake{}, APIConfig{})
	for range 3 { // again, with what is pooled
		for _, e := range []string{"gzip", "deflate"} {
			got := stream(a, t.Context(), int64(len(head)+len(data)), strings.NewReader(head+string(data)),
				header{"Inference-Header-Content-Length": fmt.Sprint(len(head)), "Accept-Encoding": e})
			if got.status != 200 || got.fields["Content-Encoding"] != e {
				t.Fatalf("%s: got %d %v", e, got.status, got.fields)
			}
			var r io.Reader
			var err error
			if e == "gzip" {
				r, err = gzip.NewReader(strings.NewReader(got.body))
			} else {
				r, err = zlib.NewReader(strings.NewReader(got.body))
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r)
			if err != nil || string(body[got.length:]) != string(data) {
				t.Errorf("%s: %v", e, err)
			}
		}
	}
	if got := stream(a, t.Context(), 1, strings.NewReader("{"), header{"Accept-Encoding": "gzip"}); got.fields["Content-Encoding"] != "" {
		t.Errorf("an error was compressed: %+v", got)
	}
}

func TestModelFaults(t *testing.T) {
	response := func(o infer.Tensor) *infer.Response {
		return &infer.Response{Model: "m", Version: "1", Final: true, Outputs: []infer.Tensor{o}}
	}
	ok := `{"inputs":[]}`
	for _, c := range []struct {
		name   string
		infer  func(context.Context, *infer.Request, infer.SendFunc) error
		status int
		want   string
	}{
		{"wrong size", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			return send(response(infer.Tensor{Name: "O", Datatype: infer.FP32, Shape: []int64{2}, Data: make([]byte, 4)}))
		}, 500, "output 'O' of shape [2] has 4 bytes, want 8"},
		{"negative shape", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			return send(response(infer.Tensor{Name: "O", Datatype: infer.FP32, Shape: []int64{-2}}))
		}, 500, "negative"},
		{"too few strings", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			return send(response(infer.Tensor{Name: "O", Datatype: infer.Bytes, Shape: []int64{2}, Data: []byte{0, 0, 0, 0}}))
		}, 500, "has 1 elements, want 2"},
		{"no response", func(context.Context, *infer.Request, infer.SendFunc) error { return nil }, 500, "gave no response"},
		{"two responses", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			_ = send(&infer.Response{Final: true})
			return send(&infer.Response{Final: true})
		}, 501, decoupledText},
		{"not final", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			return send(&infer.Response{})
		}, 501, decoupledText},
		{"error after a response", func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
			_ = send(&infer.Response{Final: true})
			return infer.Errorf(infer.Internal, "late")
		}, 500, "late"},
	} {
		got := ask(t.Context(), newFakeAPI(&fake{infer: c.infer}, APIConfig{}), "POST", "/v2/models/m/infer", ok, nil)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
}

func TestResponseParameters(t *testing.T) {
	f := &fake{infer: func(_ context.Context, _ *infer.Request, send infer.SendFunc) error {
		return send(&infer.Response{ID: "q\"1", Model: "m", Version: "2", Final: true, Params: infer.Params{
			{Name: "s", Value: infer.Value{Kind: infer.KindString, Str: "é\n"}}, {Name: "i", Value: infer.Value{Kind: infer.KindInt64, Int: -7}},
			{Name: "u", Value: infer.Value{Kind: infer.KindUint64, Int: -1}}, {Name: "d", Value: infer.Value{Kind: infer.KindDouble, Double: 2}},
			{Name: "b", Value: infer.Value{Bool: true}}}})
	}}
	got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/models/m/infer", `{"inputs":[]}`, nil)
	want := `{"id":"q\"1","model_name":"m","model_version":"2","parameters":{"s":"é\n","i":-7,"u":18446744073709551615,"d":2.0,"b":true},"outputs":[]}`
	if got.body != want {
		t.Errorf("got %s, want %s", got.body, want)
	}
}

func TestMemoryFull(t *testing.T) {
	f := &fake{}
	f.limit = 100
	head, data := binaryRequest(100)
	got := stream(newFakeAPI(f, APIConfig{}), t.Context(), int64(len(head)+len(data)), strings.NewReader(head+string(data)),
		header{"Inference-Header-Content-Length": fmt.Sprint(len(head))})
	if got.status != 503 || got.fields[ReasonHeader] != "memory_full" || got.fields["Retry-After"] != "1" {
		t.Errorf("got %+v", got)
	}
	if r := f.refused.Load(); r == nil || r.model == "" || infer.ReasonOf(r.err) != infer.ReasonMemory {
		t.Errorf("the pipeline was told of %+v", r)
	}
}

func TestEnvelope(t *testing.T) {
	var env infer.Envelope
	f := &fake{open: func(_ context.Context, e *infer.Envelope) error {
		env = *e
		if e.Header("Authorization") != "k" {
			t.Error("the header is not seen")
		}
		return infer.Errorf(infer.Unauthenticated, "no")
	}}
	got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/models/a%20b/versions/3/infer", "abc",
		header{"Authorization": "k", "X-Request-Id": "r1"})
	if got.status != 401 || env.Protocol != "http" || env.Action != infer.ActionInference || env.Model != "a b" || env.Version != "3" ||
		env.RequestID != "r1" || env.BodySize != 3 {
		t.Errorf("got %+v, %+v", got, env)
	}
}

// scarceBodies has most bytes for all buffers at one time.
type scarceBodies struct {
	memorytest.Plenty
	most, held int64
}

func (s *scarceBodies) Body(n int64) (*infer.Buffer, error) {
	if s.held+n > s.most {
		return nil, infer.Errorf(infer.Unavailable, "no room for %d bytes", n)
	}
	s.held += n
	return infer.NewBuffer(make([]byte, n), func(*infer.Buffer) { s.held -= n }), nil
}

// A body of unknown length gets less room ahead before it is refused.
func TestIntakeTakesSmallerSteps(t *testing.T) {
	s := &scarceBodies{most: 4 * firstStep}
	in := intake{bodies: s, growth: blindGrowth, total: 1 << 31}
	data := make([]byte, 2*firstStep)
	if err := in.put(data); err != nil {
		t.Fatalf("2 of 4 steps: %v", err)
	}
	if err := in.put(data); infer.CodeOf(err) != infer.Unavailable {
		t.Fatalf("4 of 4 steps: got %v, want unavailable", err)
	}
	in.drop()
	if s.held != 0 {
		t.Errorf("%d bytes are held after drop", s.held)
	}
}

// manyBodies has room, and says that there is little.
type manyBodies struct{ scarceBodies }

func (*manyBodies) Scarce() bool { return true }

// Where memory is scarce, who announces much gets little until it has come.
func TestIntakeWhereMemoryIsScarce(t *testing.T) {
	s := &manyBodies{scarceBodies{most: 1 << 30}}
	in := intake{bodies: s, growth: growth, total: 1 << 28}
	if err := in.put(make([]byte, 100)); err != nil || s.held != scarceStep {
		t.Fatalf("100 bytes: %v, %d held, want %d", err, s.held, scarceStep)
	}
	if err := in.put(make([]byte, 1<<20)); err != nil || s.held > 1<<20*blindGrowth {
		t.Fatalf("a megabyte: %v, %d held", err, s.held)
	}
	in.drop()
}

// What is short as JSON may be long as tensors.
func TestExpandedInputsAreBounded(t *testing.T) {
	a := newFakeAPI(&fake{}, APIConfig{Limits: Limits{MaxJSON: 1000}})
	for n, want := range map[int]int{125: 200, 126: 400} {
		body := fmt.Sprintf(`{"inputs":[{"name":"I","shape":[%d],"datatype":"INT64","data":[%s]}]}`, n, strings.TrimSuffix(strings.Repeat("0,", n), ","))
		got := stream(a, t.Context(), int64(len(body)), strings.NewReader(body), nil)
		if got.status != want || want == 400 && !strings.Contains(got.body, "JSON input 'I' has a byte_size (1008 bytes) that exceeds the maximum allowed value of 1000 bytes.") {
			t.Errorf("%d elements: got %+v", n, got)
		}
	}
}
