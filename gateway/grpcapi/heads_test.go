package grpcapi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
)

// A decoder that knows heads reads what one that knows none does, whatever comes between.
func TestKnownHeads(t *testing.T) {
	draw := rand.New(rand.NewPCG(5, 6))
	d, found := &decoder{}, 0
	bodies := &fakeBodies{}
	for i := range 4000 {
		m := fp32Request(1 + draw.IntN(3))
		m.ModelName = fmt.Sprint("m", draw.IntN(3))
		m.Id = []string{"", "", "a", fmt.Sprint(i), string(bytes.Repeat([]byte{'x'}, 140))}[draw.IntN(5)]
		if draw.IntN(4) == 0 {
			m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: "OUT"})
		}
		switch draw.IntN(12) {
		case 0:
			m.Parameters = map[string]*inference.InferParameter{"a": intParam(1)}
		case 1:
			m.Inputs[0].Parameters = map[string]*inference.InferParameter{"b": boolParam(true)}
		case 2:
			m.Inputs[0].Contents, m.RawInputContents = &inference.InferTensorContents{Fp32Contents: make([]float32, m.Inputs[0].Shape[len(m.Inputs[0].Shape)-1])}, nil
		case 3:
			m.ModelVersion = "1"
		}
		b := marshal(t, m)
		switch draw.IntN(12) {
		case 0:
			b = append(b, 0x1a, 1, 'z') // another id behind the raw contents
		case 1:
			b = append(b, 0xa0, 0x06, 1) // an unknown field
		case 2:
			b = b[:draw.IntN(len(b))]
		case 3:
			b = append(b, 0x0a, 1, 0xff) // a name that is no text
		}
		compareDecoders(t, d, b, bodies)
		if d.heads.known[d.heads.last].used {
			found++
		}
	}
	if found < 1000 {
		t.Errorf("a known head was met %d times", found)
	}
}

// compareDecoders reads a message by a decoder that knows heads and by generated code.
func compareDecoders(t *testing.T, d *decoder, b []byte, bodies Bodies) {
	t.Helper()
	known, standard := newCall(), newCall()
	if known.err = d.request(known, b); known.err == nil {
		known.err = d.bind(known, bodies)
	}
	d.reset()
	var m inference.ModelInferRequest
	if standard.err = proto.Unmarshal(b, &m); standard.err == nil {
		standard.err = fromMessage(standard, &m, bodies)
	}
	if diff := differ(known, standard); diff != "" {
		t.Fatalf("%x: %s", b, diff)
	}
	known.release()
	standard.release()
}

// What is decoded is the call's own: to change it changes no head.
func TestKnownHeadsAreNotShared(t *testing.T) {
	s := testService(t, &fakeBodies{})
	m := fp32Request(4)
	m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: "OUT"})
	b := marshal(t, m)
	for i := range 3 {
		c := newCall()
		s.decode(c, mem.BufferSlice{mem.SliceBuffer(bytes.Clone(b))})
		if c.err != nil || c.Request.Inputs[0].Shape[0] == 99 || c.Request.Outputs[0].Name != "OUT" {
			t.Fatalf("time %d: %v, got %+v", i, c.err, c.Request)
		}
		c.Request.Inputs[0].Shape[0], c.Request.Inputs[0].Name, c.Request.Outputs[0].Name = 99, "", ""
		c.release()
	}
}

func BenchmarkDecodeSmall(b *testing.B) {
	s := testService(b, &fakeBodies{})
	m := fp32Request(16)
	for name, id := range map[string]string{"plain": "", "id": "17"} {
		m.Id = id
		message := marshal(b, m)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := newCall()
			for b.Loop() {
				c.shapes = c.dims[:0]
				if err := s.decodeOwned(c, message); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
