package cache

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func str(s string) infer.Value { return infer.Value{Kind: infer.KindString, Str: s} }

func request() *infer.Request {
	return &infer.Request{ID: "a", Model: "m", Inputs: []infer.Tensor{
		{Name: "A", Datatype: infer.Int32, Shape: []int64{2, 3}, Data: make([]byte, 24)},
		{Name: "B", Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte{1, 0, 0, 0, 'x'}}},
		Outputs: []infer.RequestedOutput{{Name: "Y"}}, Params: infer.Params{{Name: "temperature", Value: infer.Value{Kind: infer.KindDouble, Double: .1}},
			{Name: "seed", Value: infer.Value{Kind: infer.KindInt64, Int: 1}}}}
}

func subject() *Subject { return &Subject{Model: "m", Version: "1", Load: 1, Content: [32]byte{1}} }

// change is one difference between two requests.
type change struct {
	name  string
	apply func(s *Subject, r *infer.Request)
}

// Every one of these must be another request. The first ones are the wrong answers of
// the original: another shape, other parameters, other outputs, another load.
var different = []change{
	{"shape", func(_ *Subject, r *infer.Request) { r.Inputs[0].Shape = []int64{3, 2} }},
	{"rank", func(_ *Subject, r *infer.Request) { r.Inputs[0].Shape = []int64{2, 3, 1} }},
	{"parameter's value", func(_ *Subject, r *infer.Request) { r.Params[0].Value.Double = .9 }},
	{"output", func(_ *Subject, r *infer.Request) { r.Outputs[0].Name = "Z" }},
	{"all outputs", func(_ *Subject, r *infer.Request) { r.Outputs = nil }},
	{"one output more", func(_ *Subject, r *infer.Request) { r.Outputs = append(r.Outputs, infer.RequestedOutput{Name: "Z"}) }},
	{"output's parameter", func(_ *Subject, r *infer.Request) { r.Outputs[0].Params = infer.Params{{Name: "p", Value: str("q")}} }},
	{"load and content", func(s *Subject, _ *infer.Request) { s.Load, s.Content = 2, [32]byte{2} }},
	{"tenant", func(_ *Subject, r *infer.Request) { r.Tenant = "t" }},
	{"datatype", func(_ *Subject, r *infer.Request) { r.Inputs[0].Datatype = infer.FP32 }},
	{"byte", func(_ *Subject, r *infer.Request) { r.Inputs[0].Data[23] = 1 }},
	{"input's name", func(_ *Subject, r *infer.Request) { r.Inputs[0].Name = "C" }},
	{"input left out", func(_ *Subject, r *infer.Request) { r.Inputs = r.Inputs[:1] }},
	{"names exchanged", func(_ *Subject, r *infer.Request) { r.Inputs[0].Name, r.Inputs[1].Name = "B", "A" }},
	{"model", func(s *Subject, _ *infer.Request) { s.Model = "n" }},
	{"version", func(s *Subject, _ *infer.Request) { s.Version = "2" }},
	{"model and version run together", func(s *Subject, _ *infer.Request) { s.Model, s.Version = "m1", "" }},
	{"parameter left out", func(_ *Subject, r *infer.Request) { r.Params = r.Params[:1] }},
	{"parameter's kind", func(_ *Subject, r *infer.Request) { r.Params[1].Value.Kind = infer.KindUint64 }},
	{"parameter's name", func(_ *Subject, r *infer.Request) { r.Params[1].Name = "Seed" }},
	{"parameter moved to an output", func(_ *Subject, r *infer.Request) { r.Outputs[0].Params, r.Params = r.Params, nil }},
	{"tags", func(_ *Subject, r *infer.Request) {
		r.Params = append(r.Params, infer.Param{Name: TagsParam, Value: str("t")})
	}},
	{"long input", func(_ *Subject, r *infer.Request) { r.Inputs[0].Data = make([]byte, 5000) }},
	{"long input's last byte", func(_ *Subject, r *infer.Request) {
		r.Inputs[0].Data = make([]byte, 5000)
		r.Inputs[0].Data[4999] = 1
	}},
	{"long input with zeros", func(_ *Subject, r *infer.Request) { r.Inputs[0].Data = make([]byte, 5001) }},
}

// These are the same request.
var alike = []change{
	{"id", func(_ *Subject, r *infer.Request) { r.ID = "b" }},
	{"priority and timeout", func(_ *Subject, r *infer.Request) { r.Priority, r.Timeout = 1, 5 }},
	{"order of inputs", func(_ *Subject, r *infer.Request) { slices.Reverse(r.Inputs) }},
	{"order of parameters", func(_ *Subject, r *infer.Request) { slices.Reverse(r.Params) }},
	{"number of classes", func(_ *Subject, r *infer.Request) { r.Outputs[0].Classification = 3 }},
	{"version as it was written", func(_ *Subject, r *infer.Request) { r.Version = "1" }},
}

func keys(k *Keys, c *change) (Key, [32]byte) {
	s, r := subject(), request()
	if c != nil {
		c.apply(s, r)
	}
	q := k.Query(s, r)
	defer q.Done()
	shared, _ := q.Shared()
	return q.Key, shared
}

func TestKeys(t *testing.T) {
	k := NewKeys()
	own, shared := keys(k, nil)
	seen := map[string]string{string(own[:]): "first", string(shared[:]): "first, shared"}
	for _, c := range different {
		for i, key := range func() []string { a, b := keys(k, &c); return []string{string(a[:]), string(b[:])} }() {
			if other, ok := seen[key]; ok {
				t.Errorf("%s (key %d) is the same request as %s", c.name, i, other)
			}
			seen[key] = c.name
		}
	}
	for _, c := range alike {
		if a, b := keys(k, &c); a != own || b != shared {
			t.Errorf("another %s is another request: %v %v", c.name, a == own, b == shared)
		}
	}
	long := change{apply: func(_ *Subject, r *infer.Request) { r.Inputs[0].Data = make([]byte, 5000) }}
	own, shared = keys(k, &long)
	if again, sameShared := keys(NewKeys(), &long); again == own || sameShared != shared {
		t.Error("the process's key of a long input must be its own, the shared one everybody's")
	}
}

func TestLoadAndContent(t *testing.T) {
	k := NewKeys()
	own, shared := keys(k, nil)
	a, b := keys(k, &change{apply: func(s *Subject, _ *infer.Request) { s.Load = 2 }})
	if a == own || b != shared {
		t.Error("another load of one content: its own key must differ, the shared one must not")
	}
	a, b = keys(k, &change{apply: func(s *Subject, _ *infer.Request) { s.Content[31] = 1 }})
	if a != own || b == shared {
		t.Error("another content: the shared key must differ")
	}
	q := k.Query(&Subject{Model: "m", Version: "1", Load: 1}, request())
	if _, ok := q.Shared(); ok {
		t.Error("a version whose content is not known must not be shared")
	}
}

// A request without its inputs is no other's: what was asked before stays, and nothing is made of it later.
func TestSharedOfReleasedInputs(t *testing.T) {
	k := NewKeys()
	counted := func() *infer.Request {
		r := request()
		r.Memory = infer.NewBuffer(nil, func(*infer.Buffer) {})
		return r
	}
	r := counted()
	before := k.Query(subject(), r)
	want, _ := before.Shared()
	r.ReleaseInputs()
	if got, ok := before.Shared(); !ok || got != want {
		t.Error("the identity has changed with the inputs' end")
	}
	r = counted()
	late := k.Query(subject(), r)
	r.ReleaseInputs()
	if _, ok := late.Shared(); ok {
		t.Error("a request without its inputs has an identity")
	}
}

// A request with so much beside its data that its form is compressed as a whole.
func TestLongForms(t *testing.T) {
	k := NewKeys()
	seen := map[Key]int{}
	for i := range 300 {
		r := request()
		r.Params = nil
		for j := range 200 {
			v := infer.Value{Kind: infer.KindDouble, Double: math.Pi}
			if j == i {
				v.Double = 0
			}
			r.Params = append(r.Params, infer.Param{Name: string(rune('a' + j)), Value: v})
		}
		q := k.Query(subject(), r)
		if at, ok := seen[q.Key]; ok && i <= 200 {
			t.Fatalf("requests %d and %d have one key", i, at)
		}
		seen[q.Key] = i
		q.Done()
	}
	if len(seen) != 201 {
		t.Errorf("%d keys, want 201", len(seen))
	}
}

// Requests that differ little have keys that are spread evenly.
func TestSpread(t *testing.T) {
	k := NewKeys()
	for _, bit := range []int{0, 8, 23, 40} { // of a word, from where on it counts
		var places [64]int
		for i := range 6400 {
			r := request()
			r.Params, r.Inputs[0].Data = nil, binary.LittleEndian.AppendUint64(nil, uint64(i)<<bit)
			q := k.Query(subject(), r)
			places[q.Key.Spread()%64]++
			q.Done()
		}
		for at, n := range places {
			if n < 40 || n > 180 {
				t.Errorf("from bit %d on: %d of 6400 keys at place %d of 64", bit, n, at)
			}
		}
	}
}

func TestTags(t *testing.T) {
	k := NewKeys()
	s, r := subject(), request()
	s.Tags = ParseTags("z, a,a")
	r.Params = append(r.Params, infer.Param{Name: TagsParam, Value: str(" b ,,a,z")})
	q := k.Query(s, r)
	if want := []string{"a", "b", "z"}; !slices.Equal(q.Tags, want) || !slices.Equal(s.Tags, []string{"a", "z"}) {
		t.Errorf("tags %q, want %q; the subject's %q", q.Tags, want, s.Tags)
	}
	if got := ParseTags("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18"); len(got) != maxTags {
		t.Errorf("%d tags", len(got))
	}
}

func TestParseTTL(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "2": 2e9, "0.5": 5e8, "1h": 3600e9, "1e30": int64(maxTTL), "999999h": int64(maxTTL)} {
		if got, err := ParseTTL(text); err != nil || int64(got) != want {
			t.Errorf("%q: %v, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1s", "x", "NaN", "1y"} {
		if got, err := ParseTTL(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func BenchmarkKey(b *testing.B) {
	for name, n := range map[string]int{"64B": 64, "2KiB": 2 << 10, "600KiB": 600 << 10} {
		r := request()
		r.Params, r.Inputs[0].Data = nil, make([]byte, n)
		k, s := NewKeys(), subject()
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				k.Query(s, r).Done()
			}
		})
		b.Run(name+"/shared", func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				q := k.Query(s, r)
				q.Shared()
				q.Done()
			}
		})
	}
}
