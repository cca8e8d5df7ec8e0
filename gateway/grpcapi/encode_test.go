package grpcapi

import (
	"bytes"
	"math"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// response has one FP32 output for each size in bytes, all in counted memory.
func response(done func(), sizes ...int) *infer.Response {
	total := 0
	for _, n := range sizes {
		total += n
	}
	memory := infer.NewBuffer(bytes.Repeat([]byte{0xab}, total), func(b *infer.Buffer) {
		clear(b.Data)
		b.Data = nil
		done()
	})
	r := &infer.Response{ID: "r1", Model: "m", Version: "3", Final: true, Memory: memory}
	rest := memory.Data
	for _, n := range sizes {
		r.Outputs = append(r.Outputs, infer.Tensor{Name: "OUT", Datatype: infer.FP32, Shape: []int64{1, int64(n / 4)}, Data: rest[:n]})
		rest = rest[n:]
	}
	return r
}

func TestEncodeAgreesWithGeneratedCode(t *testing.T) {
	params := infer.Params{{Name: "b", Value: infer.Value{Kind: infer.KindBool, Bool: true}}, {Name: "i", Value: infer.Value{Kind: infer.KindInt64, Int: -7}},
		{Name: "u", Value: infer.Value{Kind: infer.KindUint64, Int: -1}}, {Name: "d", Value: infer.Value{Kind: infer.KindDouble, Double: math.Pi}},
		{Name: "s", Value: infer.Value{Kind: infer.KindString, Str: "text"}}, {Name: "zero", Value: infer.Value{}}, {Name: ""}}
	for name, test := range map[string]struct {
		sizes  []int
		params infer.Params
	}{
		"nothing": {}, "tiny": {sizes: []int{64}}, "parameters": {sizes: []int{4}, params: params}, "empty output": {sizes: []int{0}},
		"middling": {sizes: []int{500}}, "pooled head": {sizes: []int{4000, 4000}}, "large": {sizes: []int{600_000}},
		"many large": {sizes: []int{byReference, 4, byReference, 2000, byReference}}, "large first and last": {sizes: []int{9000, 9000}, params: params},
	} {
		t.Run(name, func(t *testing.T) {
			released := 0
			r := response(func() { released++ }, test.sizes...)
			r.Params = test.params
			r.Memory.Retain() // for the second encoding
			c := newCall()
			if err := testService(t, nil).encode(c, r); err != nil {
				t.Fatal(err)
			}
			var got inference.ModelInferResponse
			if err := proto.Unmarshal(c.reply.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			want, err := toMessage(r)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(&got, want) {
				t.Fatalf("got %v, want %v", &got, want)
			}
			c.reply.Free()
			if released != 1 {
				t.Fatalf("memory was released %d times", released)
			}
		})
	}
}

func TestEncodeLendsLargeOutputsUntilWritten(t *testing.T) {
	released := false
	r := response(func() { released = true }, 600_000)
	c := newCall()
	if err := testService(t, nil).encode(c, r); err != nil {
		t.Fatal(err)
	}
	lent := false
	for _, b := range c.reply {
		lent = lent || b.Len() > 0 && &b.ReadOnlyData()[0] == &r.Outputs[0].Data[0]
	}
	if !lent || released {
		t.Fatalf("lent %v, released %v", lent, released)
	}
	c.reply.Free()
	if !released {
		t.Fatal("not released after writing")
	}
}

func TestEncodeRefusesOutputsOfTheWrongSize(t *testing.T) {
	for _, standard := range []bool{false, true} {
		released := false
		r := response(func() { released = true }, 64)
		r.Outputs[0].Shape = []int64{1, 17}
		var err error
		if standard {
			_, err = toMessage(r)
		} else {
			err = testService(t, nil).encode(newCall(), r)
		}
		if err == nil || infer.CodeOf(err) != infer.Internal || !released {
			t.Fatalf("standard %v: %v, released %v", standard, err, released)
		}
	}
}

func TestEncodeRefusesTextThatIsNone(t *testing.T) {
	for name, change := range map[string]func(*infer.Response){
		"parameter": func(r *infer.Response) {
			r.Params = infer.Params{{Name: "p", Value: infer.Value{Kind: infer.KindString, Str: "\xff"}}}
		},
		"output name": func(r *infer.Response) { r.Outputs[0].Name = "\xff" },
	} {
		r := response(func() {}, 64)
		change(r)
		if err := testService(t, nil).encode(newCall(), r); err == nil || infer.CodeOf(err) != infer.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// withCPU runs a benchmark's loop and reports the processor time of an operation too:
// on a machine that others use, wall time says little.
func withCPU(b *testing.B, loop func()) {
	b.ReportAllocs()
	before := cpuTime(b)
	loop()
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecode(b *testing.B) {
	for name, n := range map[string]int{"64B": 16, "600KB": 150_000} {
		message := marshal(b, fp32Request(n))
		data := cutFrames(message, max(16<<10, 1))
		b.Run(name+"/hand", func(b *testing.B) {
			s := testService(b, &reused{})
			withCPU(b, func() {
				for b.Loop() {
					c := newCall()
					s.decode(c, data)
					if c.err != nil {
						b.Fatal(c.err)
					}
					c.release()
				}
			})
		})
		b.Run(name+"/generated", func(b *testing.B) {
			withCPU(b, func() {
				for b.Loop() {
					var m inference.ModelInferRequest
					if err := unmarshal(data, &m); err != nil {
						b.Fatal(err)
					}
					c := newCall()
					if err := fromMessage(c, &m, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, n := range map[string]int{"64B": 64, "600KB": 600_000} {
		r := response(func() {}, n)
		r.Memory = infer.NewBuffer(r.Memory.Data, func(*infer.Buffer) { panic("released") })
		b.Run(name+"/hand", func(b *testing.B) {
			s := testService(b, nil)
			withCPU(b, func() {
				for b.Loop() {
					r.Memory.Retain()
					c := newCall()
					if err := s.encode(c, r); err != nil {
						b.Fatal(err)
					}
					c.reply.Free()
				}
			})
		})
		b.Run(name+"/generated", func(b *testing.B) {
			withCPU(b, func() {
				for b.Loop() {
					r.Memory.Retain()
					m, err := toMessage(r)
					if err != nil {
						b.Fatal(err)
					}
					out, err := codec{}.Marshal(m)
					if err != nil {
						b.Fatal(err)
					}
					out.Free()
				}
			})
		})
	}
}

// reused is memory for one body, as an arena gives it: without a new allocation.
type reused struct {
	memorytest.Plenty
	infer.Buffer
	data []byte
}

func (r *reused) Body(n int64) (*infer.Buffer, error) {
	if int64(len(r.data)) < n {
		r.data = make([]byte, n)
	}
	r.Reset(r.data[:n], func(*infer.Buffer) {})
	return &r.Buffer, nil
}

var _ mem.BufferPool = (*output)(nil)
