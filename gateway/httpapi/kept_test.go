package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// taken is a request as a pipeline gets it, copied.
func taken(req *infer.Request) infer.Request {
	r := infer.Request{ID: strings.Clone(req.ID), Model: req.Model, Version: req.Version, Priority: req.Priority, Timeout: req.Timeout,
		Correlation: req.Correlation, SequenceStart: req.SequenceStart, SequenceEnd: req.SequenceEnd, Params: slices.Clone(req.Params)}
	for _, t := range req.Inputs {
		t.Shape, t.Data = slices.Clone(t.Shape), bytes.Clone(t.Data)
		r.Inputs = append(r.Inputs, t)
	}
	for _, o := range req.Outputs {
		o.Params = slices.Clone(o.Params)
		r.Outputs = append(r.Outputs, o)
	}
	return r
}

// spoil writes wherever later steps may.
func spoil(req *infer.Request) {
	for i := range req.Inputs {
		shape := req.Inputs[i].Shape
		for j := range shape {
			shape[j] = -7
		}
		_ = append(shape, -8)
		req.Inputs[i] = infer.Tensor{Name: "spoilt"}
	}
	for i := range req.Outputs {
		for j := range req.Outputs[i].Params {
			req.Outputs[i].Params[j] = infer.Param{Name: "spoilt"}
		}
		_ = append(req.Outputs[i].Params, infer.Param{Name: "spoilt"})
		req.Outputs[i] = infer.RequestedOutput{Name: "spoilt"}
	}
	for i := range req.Params {
		req.Params[i] = infer.Param{Name: "spoilt"}
	}
	_ = append(req.Params, infer.Param{Name: "spoilt"})
}

// twin is an API that keeps heads beside one that does not.
type twin struct {
	kept, read *API
	got, want  *fake
	saw        [2]infer.Request
}

func newTwin(limits Limits) *twin {
	w := &twin{}
	one := func(to *infer.Request, never bool) (*fake, *API) {
		f := &fake{}
		f.limit = 1 << 26
		f.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
			*to = taken(req)
			resp := identity(req)
			for i := range resp.Outputs { // its own: the request's are spoilt
				resp.Outputs[i].Shape = slices.Clone(resp.Outputs[i].Shape)
			}
			spoil(req)
			return send(resp)
		}
		return f, newFakeAPI(f, APIConfig{Limits: limits, HeaderForward: "^x-fwd", NoKeptHeads: never})
	}
	w.got, w.kept = one(&w.saw[0], false)
	w.want, w.read = one(&w.saw[1], true)
	return w
}

// check sends the same to both and compares what the pipelines saw and what came back.
func (w *twin) check(t *testing.T, head string, data []byte, length int, chunked bool) answer {
	t.Helper()
	n := int64(len(head) + len(data))
	if chunked {
		n = -1
	}
	h := header{"X-Fwd-A": "1"}
	if length >= 0 {
		h["Inference-Header-Content-Length"] = fmt.Sprint(length)
	}
	w.saw = [2]infer.Request{}
	body := func() io.Reader { return io.MultiReader(strings.NewReader(head), bytes.NewReader(data)) }
	got, want := stream(w.kept, t.Context(), n, body(), h), stream(w.read, t.Context(), n, body(), h)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: answered\n%+v, want\n%+v", head, got, want)
	}
	if !reflect.DeepEqual(w.saw[0], w.saw[1]) {
		t.Fatalf("%q: saw\n%+v, want\n%+v", head, w.saw[0], w.saw[1])
	}
	if held := w.got.held.Load(); held != 0 {
		t.Fatalf("%q: %d bytes are still held", head, held)
	}
	return got
}

// keptCases are heads, their %s in place of ids where there is one, and data.
var keptCases = []struct{ name, head, data string }{
	{"binary", `{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}`, "abcdefgh"},
	{"id", `{"id":"%s","inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"parameters":{"binary_data_output":true}}`, "abcdefgh"},
	{"id behind", `{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}],"id":"%s"}`, "ab"},
	{"two ids", `{"id":"%s","inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}],"id":"b"}`, "ab"},
	{"all there is", `{"id":"%s","parameters":{"sequence_id":7,"sequence_start":true,"sequence_end":false,"priority":2,"timeout":5,"x":"y","z":1.5},` +
		`"inputs":[{"name":"I_A","shape":[2,1],"datatype":"BYTES","parameters":{"binary_data_size":10}},{"name":"I_B","shape":[2],"datatype":"INT32","data":[1,2]}],` +
		`"outputs":[{"name":"O_B","parameters":{"binary_data":true,"p":1,"q":"r"}},{"name":"O_A","parameters":{"classification":0}}]}`, "\x01\x00\x00\x00a\x01\x00\x00\x00b"},
	{"a string for a sequence", `{"parameters":{"sequence_id":"s","x":true},"inputs":[{"name":"I","shape":[1],"datatype":"BOOL","data":[true]}]}`, ""},
	{"data in JSON", `{"inputs":[{"name":"INPUT0","shape":[3],"datatype":"FP64","data":[1,2.5,3]}]}`, ""},
	{"wrong sizes", `{"inputs":[{"name":"INPUT0","shape":[3],"datatype":"FP64","parameters":{"binary_data_size":9}}]}`, "abc"},
	{"too much", `{"inputs":[{"name":"INPUT0","shape":[3],"datatype":"INT8","parameters":{"binary_data_size":3}}]}`, "abcd"},
	{"a region", `{"inputs":[{"name":"INPUT0","shape":[3],"datatype":"INT8","parameters":{"shared_memory_region":"r","shared_memory_byte_size":3}}]}`, ""},
	{"no datatype", `{"id":"%s","inputs":[{"name":"INPUT0","shape":[3],"data":[1]}]}`, ""},
	{"no JSON", `{"id":"%s","inputs":[}`, ""},
	{"twice", `{"id":"%s","inputs":[{"name":"I_A","shape":[1],"datatype":"INT8","data":[1]}],"outputs":[{"name":"O_A"},{"name":"O_A","parameters":{"binary_data":true}}]}`, ""},
}

// The answer to a request, and what the pipeline gets of it, is the same whether its head
// was read or kept, whatever other requests of the head met.
func TestKeptHeads(t *testing.T) {
	for _, c := range keptCases {
		t.Run(c.name, func(t *testing.T) {
			w := newTwin(Limits{})
			for _, id := range []string{"a", "a", "b", "", "a longer one", `\u0041`, "ü", "a\x01", "c", strings.Repeat("x", 300), "d"} {
				head := strings.ReplaceAll(c.head, "%s", id)
				w.check(t, head, []byte(c.data), len(head), false)
				w.check(t, head, []byte(strings.ToUpper(c.data)), len(head), true)
				w.check(t, head, []byte(c.data+"more"), len(head), false)
				w.check(t, head, nil, len(head), false)
				w.check(t, head, nil, -1, true)
			}
		})
	}
}

// count is how many heads are kept.
func (h *heads) count() (n int) {
	for i := range h.kept {
		for j := range h.kept[i] {
			if h.kept[i][j].Load() != nil {
				n++
			}
		}
	}
	return n
}

func TestWhatIsKept(t *testing.T) {
	const plain = `{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}]%s}`
	few := `{"inputs":[{"name":"INPUT0","shape":[300],"datatype":"FP32","data":[` + strings.TrimSuffix(strings.Repeat("1,", 300), ",") + `]}]}`
	for _, c := range []struct {
		name  string
		heads []string
		data  string
		want  int
	}{
		{"once", []string{fmt.Sprintf(plain, "")}, "ab", 0},
		{"twice", []string{fmt.Sprintf(plain, ""), fmt.Sprintf(plain, "")}, "ab", 1},
		{"of one kind but for the id", []string{`{"id":"a",` + fmt.Sprintf(plain, "")[1:], `{"id":"b",` + fmt.Sprintf(plain, "")[1:], `{"id":"c",` + fmt.Sprintf(plain, "")[1:]}, "ab", 1},
		{"too long", slices.Repeat([]string{fmt.Sprintf(plain, strings.Repeat(" ", keepHead))}, 3), "ab", 0},
		{"long, and all of it JSON", slices.Repeat([]string{fmt.Sprintf(plain[:len(plain)-3], strings.Repeat(" ", keepPlain)) + "}"}, 3), "", 0},
		{"with much data", slices.Repeat([]string{few}, 3), "", 0},
	} {
		w := newTwin(Limits{})
		for _, head := range c.heads {
			w.check(t, head, []byte(c.data), len(head), false)
		}
		if got := w.kept.heads.count(); got != c.want {
			t.Errorf("%s: %d heads are kept, want %d", c.name, got, c.want)
		}
		if w.read.heads.count() != 0 {
			t.Errorf("%s: kept where it is off", c.name)
		}
	}
}

// Whoever sends what, no more is kept than there are places.
func TestKeptHeadsAreBounded(t *testing.T) {
	w := newTwin(Limits{})
	for i := range 2000 {
		head := fmt.Sprintf(`{"inputs":[{"name":"INPUT%d","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}]}`, i)
		for range 3 {
			w.check(t, head, []byte("ab"), len(head), false)
		}
	}
	if got := w.kept.heads.count(); got != headSets*headWays {
		t.Errorf("%d heads are kept, want all %d places taken", got, headSets*headWays)
	}
}

// Many callers with the same heads at a time, each of which writes to its request.
func TestKeptHeadsAreShared(t *testing.T) {
	f := &fake{}
	f.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		resp := identity(req)
		for i := range resp.Outputs {
			resp.Outputs[i].Shape = slices.Clone(resp.Outputs[i].Shape)
		}
		spoil(req)
		return send(resp)
	}
	a := newFakeAPI(f, APIConfig{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := fmt.Sprint(i % 4)
			head := `{"id":"` + id + `","inputs":[{"name":"INPUT0","shape":[1,` + id + `],"datatype":"INT8","parameters":{"binary_data_size":` + id + `}}],"parameters":{"x":1}}`
			want := `{"id":"` + id + `","model_name":"two","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT8","shape":[1,` + id + `],"data":[`
			for range 300 {
				got := ask(t.Context(), a, "POST", "/v2/models/two/infer", head+"abcd"[:i%4], header{"Inference-Header-Content-Length": fmt.Sprint(len(head))})
				if got.status != 200 || !strings.HasPrefix(got.body, want) {
					t.Errorf("%q: got %+v", head, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

// keptAnswers are answers that differ in one thing each.
func keptAnswers() []infer.Response {
	all := make([]infer.Response, 11)
	for i := range all {
		r := &all[i]
		*r = infer.Response{Model: "m", Version: "1", Final: true, Outputs: []infer.Tensor{
			{Name: "A", Datatype: infer.FP32, Shape: []int64{1, 2}, Data: []byte("abcdefgh")}, {Name: "B", Datatype: infer.Int8, Shape: []int64{2}, Data: []byte("ij")}}}
	}
	all[1].Version = "2"
	all[2].Outputs[0].Name = "C"
	all[3].Outputs[0].Shape = []int64{2, 1}
	all[4].Outputs[1].Datatype = infer.Uint8
	all[5].Outputs = all[5].Outputs[:1]
	all[6].Params = infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindInt64, Int: 3}}}
	all[7].Outputs[0].Data = []byte("abcd") // not what its shape says
	all[8].Outputs[1] = infer.Tensor{Name: "B", Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte("\x01\x00\x00\x00x")}
	all[9].Outputs[1] = infer.Tensor{Name: "B", Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte("\x02\x00\x00\x00x")} // cut off
	all[10].Outputs[1].Data = []byte("kl")
	return all
}

// An answer is the same whether its JSON part was written or kept, whatever came before.
func TestKeptAnswers(t *testing.T) {
	w := newTwin(Limits{})
	all := keptAnswers()
	answer := func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		resp := all[req.Inputs[0].Data[0]]
		resp.ID = req.ID
		return send(&resp)
	}
	w.got.infer, w.want.infer = answer, answer
	rng := rand.New(rand.NewPCG(1, 2))
	heads := []string{`{"id":"%d","inputs":[{"name":"I","shape":[1],"datatype":"INT8","parameters":{"binary_data_size":1}}],"parameters":{"binary_data_output":true}}`,
		`{"inputs":[{"name":"I","shape":[1],"datatype":"INT8","parameters":{"binary_data_size":1}}],"outputs":[{"name":"A","parameters":{"binary_data":true}},{"name":"B","parameters":{"binary_data":true}}]}`,
		`{"inputs":[{"name":"I","shape":[1],"datatype":"INT8","parameters":{"binary_data_size":1}}],"outputs":[{"name":"A","parameters":{"binary_data":true}},{"name":"B"}]}`}
	statuses := map[int]int{}
	for i := range 3000 {
		head := strings.ReplaceAll(heads[rng.IntN(len(heads))], "%d", fmt.Sprint(i))
		one := byte(rng.IntN(len(all)))
		if i%3 > 0 {
			one = 10 * byte(i%2) // so that these are kept
		}
		statuses[w.check(t, head, []byte{one}, len(head), false).status]++
	}
	if statuses[200] < 2000 || statuses[500] == 0 {
		t.Errorf("answers %v: nothing was tried", statuses)
	}
}

// FuzzKeptHeads: whatever the head, the same is made of it the first time, when it is
// read, and the third, when it is kept.
func FuzzKeptHeads(f *testing.F) {
	for _, c := range keptCases {
		f.Add(c.head, []byte(c.data), len(c.head), false)
	}
	f.Add("", []byte("abcd"), 0, true)
	w := newTwin(Limits{MaxJSON: 1 << 16, MaxBody: 1 << 20})
	f.Fuzz(func(t *testing.T, head string, data []byte, length int, chunked bool) {
		for range 3 {
			w.check(t, head, data, length, chunked)
		}
	})
}
