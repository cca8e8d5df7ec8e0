package picker

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
)

func TestReadDocument(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		want      Call
	}{
		{"no parameters", `{"inputs":[{"name":"A","data":[1,2]}]}`, Call{}},
		{"number", `{"id":"7","parameters":{"sequence_id":42,"sequence_start":true},"inputs":[]}`, Call{Sequence: "42", Start: true}},
		{"last", `{"inputs":[{"name":"A","parameters":{"sequence_id":9},"data":["}\"]"]}], "parameters" : { "x":{"y":[1]}, "sequence_id" : 18446744073709551615 , "sequence_end": true } }`,
			Call{Sequence: "18446744073709551615", End: true}},
		{"text", `{"parameters":{"sequence_id":"a\"b\u0041"}}`, Call{Sequence: `s:a"bA`}},
		{"zero is none", `{"parameters":{"sequence_id":0,"sequence_start":false}}`, Call{}},
		{"negative", `{"parameters":{"sequence_id":-1}}`, Call{}},
		{"of an input", `{"inputs":[{"parameters":{"sequence_id":3}}]}`, Call{}},
		{"cut off behind", `{"parameters":{"sequence_id":5,"sequence_start":true},"inputs":[{"data":[1,2`, Call{Sequence: "5", Start: true}},
		{"cut off in the number", `{"parameters":{"sequence_id":5`, Call{}},
		{"cut off in a name", `{"parameters":{"sequence_`, Call{}},
		{"no object", `[1]`, Call{}},
		{"nothing", ``, Call{}},
	} {
		var got Call
		readDocument([]byte(c.doc), &got)
		if got.Key == 0 {
			t.Errorf("%s: no key", c.name)
		}
		if got.Key = 0; got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestParametersBehindTensors reads a sequence's parameters that stand behind a long
// tensor, which is where the original's clients write them.
func TestParametersBehindTensors(t *testing.T) {
	doc := []byte(`{"inputs":[{"name":"A","data":[` + strings.Repeat("1,", 100_000) + `1]}],"parameters":{"sequence_id":5,"sequence_start":true}}`)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(doc); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for encoding, body := range map[string][]byte{"": doc, "gzip": packed.Bytes()} {
		var c Call
		if !readBody(body, &head{encoding: encoding, sequence: true}, &c) || c.Sequence != "5" || !c.Start {
			t.Errorf("%q: %+v", encoding, c)
		}
		c = Call{}
		if !readBody(body, &head{encoding: encoding}, &c) || c.Sequence != "" || c.Key == 0 {
			t.Errorf("%q, of a model without sequences: %+v", encoding, c)
		}
	}
}

// TestLongIDs bounds what is remembered of an ID, and tells long ones apart.
func TestLongIDs(t *testing.T) {
	long := strings.Repeat("é", 20_000)
	a, b := correlation(long), correlation(long+"b")
	if a == b || len(a) > 256 || !strings.HasPrefix(a, "s:éé") {
		t.Errorf("%d bytes: %s, and %s", len(a), a, b)
	}
	var c Call
	readDocument([]byte(`{"parameters":{"sequence_id":"`+long+`"}}`), &c)
	if c.Sequence != a {
		t.Errorf("a body has %s, a header %s", c.Sequence, a)
	}
}

func key(doc string) uint64 {
	var c Call
	readDocument([]byte(doc), &c)
	return c.Key
}

func TestKeyIsWithoutID(t *testing.T) {
	a, b, other := key(`{"id":"1","inputs":[{"data":[1,2]}]}`), key(`{"id":"22","inputs":[{"data":[1,2]}]}`), key(`{"id":"1","inputs":[{"data":[1,3]}]}`)
	if a != b || a == other {
		t.Errorf("keys %x %x %x: the first two are equal requests, the third is not", a, b, other)
	}
	message := func(id string, x byte) []byte {
		return marshal(t, &inference.ModelInferRequest{ModelName: "m", Id: id, RawInputContents: [][]byte{{1, 2, 3, x}},
			Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: "INT32", Shape: []int64{1}}}})
	}
	var c [3]Call
	for i, m := range [][]byte{message("1", 4), message("22", 4), message("1", 5)} {
		readMessage(m, &c[i])
	}
	if c[0].Key != c[1].Key || c[0].Key == c[2].Key {
		t.Errorf("keys %x %x %x over gRPC", c[0].Key, c[1].Key, c[2].Key)
	}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sequenced() *inference.ModelInferRequest {
	return &inference.ModelInferRequest{ModelName: "m", ModelVersion: "3", Id: "x",
		Parameters: map[string]*inference.InferParameter{
			"sequence_id":    {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 77}},
			"sequence_start": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
			"sequence_end":   {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: false}},
			"other":          {ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: 1}}},
		RawInputContents: [][]byte{make([]byte, 200_000)}}
}

func framed(message []byte, flag byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(message))), message...)
}

// gRPC bodies are read as they come: whole, cut off, compressed.
func TestReadGRPC(t *testing.T) {
	message := marshal(t, sequenced())
	var zipped, deflated bytes.Buffer
	z, d := gzip.NewWriter(&zipped), zlib.NewWriter(&deflated)
	for _, w := range []interface {
		Write([]byte) (int, error)
		Close() error
	}{z, d} {
		if _, err := w.Write(message); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	want := Call{Model: "m", Version: "3", Sequence: "77", Start: true}
	for _, c := range []struct {
		name, encoding string
		body           []byte
		want           Call
		ok             bool
	}{
		{"whole", "", framed(message, 0), want, true},
		{"cut off", "", framed(message, 0)[:1000], want, true},
		{"not compressed, though it could be", "gzip", framed(message, 0), want, true},
		{"gzip", "gzip", framed(zipped.Bytes(), 1), want, true},
		{"deflate", "deflate", framed(deflated.Bytes(), 1), want, true},
		{"unknown compression", "zstd", framed(message, 1), Call{}, false},
		{"no gzip", "gzip", framed(message, 1), Call{}, false},
		{"short", "", []byte{0, 0}, Call{}, false},
		{"no message", "", framed([]byte{0xff, 0xff}, 0), Call{}, true},
	} {
		var got Call
		ok := readBody(c.body, &head{grpc: true, unary: true, encoding: c.encoding}, &got)
		if got.Key = 0; got != c.want || ok != c.ok {
			t.Errorf("%s: got %+v %v, want %+v %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestReadHead(t *testing.T) {
	for _, c := range []struct {
		headers string
		head    head
		call    Call
	}{
		{":path=/v2/models/m/infer", head{path: "/v2/models/m/infer", inference: true, unary: true}, Call{Model: "m"}},
		{":path=/v2/models/a%20b/versions/2/infer?x=1 content-encoding=gzip inference-header-content-length=12",
			head{path: "/v2/models/a%20b/versions/2/infer?x=1", inference: true, unary: true, encoding: "gzip", json: 12}, Call{Model: "a b", Version: "2"}},
		{":path=/v2/models/m", head{path: "/v2/models/m"}, Call{Model: "m"}},
		{":path=/v2/models/stats", head{path: "/v2/models/stats"}, Call{}},
		{":path=/v2/health/ready x-sluice-model=m", head{path: "/v2/health/ready"}, Call{}},
		{":path=/v2/models/m/infer x-sluice-sequence=007 x-sluice-sequence-start=true", head{path: "/v2/models/m/infer", inference: true, unary: true, flagged: true},
			Call{Model: "m", Sequence: "7", Start: true, Bare: true}},
		{":path=/inference.GRPCInferenceService/ModelInfer content-type=application/grpc+proto grpc-encoding=gzip",
			head{grpc: true, unary: true, inference: true, path: inferMethod, encoding: "gzip"}, Call{}},
		{":path=/inference.GRPCInferenceService/ModelStreamInfer content-type=application/grpc x-sluice-model=m x-sluice-model-version=4 x-sluice-sequence=job",
			head{grpc: true, inference: true, path: streamMethod, named: true, flagged: true}, Call{Model: "m", Version: "4", Sequence: "s:job", Bare: true}},
	} {
		var headers []*corev3.HeaderValue
		for _, pair := range strings.Fields(c.headers) {
			k, v, _ := strings.Cut(pair, "=")
			headers = append(headers, &corev3.HeaderValue{Key: k, RawValue: []byte(v)})
		}
		h, call := readHead(headers)
		if h != c.head || call != c.call {
			t.Errorf("%s: got %+v %+v, want %+v %+v", c.headers, h, call, c.head, c.call)
		}
	}
}

// What bodies say never hurts, and the same body says the same, whatever comes behind it.
func FuzzReadBody(f *testing.F) {
	f.Add([]byte(`{"parameters":{"sequence_id":"a\\u00"},"inputs":[{}]}`), false, "")
	f.Add(framed([]byte("\n\x01m"), 0), true, "")
	f.Add(framed([]byte("x"), 1), true, "gzip")
	f.Fuzz(func(t *testing.T, body []byte, grpc bool, encoding string) {
		h := &head{grpc: grpc, unary: true, encoding: encoding}
		var one, two Call
		ok := readBody(body, h, &one)
		if again := readBody(bytes.Clone(body), h, &two); again != ok || one != two {
			t.Errorf("read %+v, then %+v", one, two)
		}
		if !ok && one != (Call{}) {
			t.Errorf("could not be read, yet %+v", one)
		}
		if len(one.Model)+len(one.Version)+len(one.Sequence) > len(body)+peek {
			t.Error(fmt.Sprintf("%d bytes say more than they have", len(body)))
		}
	})
}
