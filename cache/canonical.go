package cache

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// form is the version of the canonical form; it is part of it.
const form = 2

// inline is the length from which input bytes are hashed on their own before they come
// into the form.
const inline = 512

func appendLen(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }

func appendText(b []byte, s string) []byte { return append(appendLen(b, len(s)), s...) }

// appendCanonical writes the canonical form of a request to s. Every list begins with
// its count and every text with its length, so no two requests have one form. What is
// sorted is what has no order: inputs and parameters. Requested outputs keep theirs.
// generation is what tells versions apart: Load in this process, Content between them.
func appendCanonical(b []byte, s *Subject, generation []byte, req *infer.Request, long digest) []byte {
	b = append(b, form)
	b = appendText(b, s.Model)
	b = appendText(b, s.Version)
	b = append(appendLen(b, len(generation)), generation...)
	b = appendText(b, req.Tenant)
	b = appendLen(b, len(req.Inputs))
	if sorted(req.Inputs) {
		for i := range req.Inputs {
			b = appendInput(b, &req.Inputs[i], long)
		}
	} else {
		inputs := slices.Clone(req.Inputs)
		slices.SortFunc(inputs, func(x, y infer.Tensor) int { return strings.Compare(x.Name, y.Name) })
		for i := range inputs {
			b = appendInput(b, &inputs[i], long)
		}
	}
	b = appendLen(b, len(req.Outputs))
	for i := range req.Outputs {
		b = appendText(b, req.Outputs[i].Name)
		b = appendParams(b, req.Outputs[i].Params)
	}
	return appendParams(b, req.Params)
}

func sorted(inputs []infer.Tensor) bool {
	for i := 1; i < len(inputs); i++ {
		if inputs[i].Name < inputs[i-1].Name {
			return false
		}
	}
	return true
}

func appendInput(b []byte, t *infer.Tensor, long digest) []byte {
	b = appendText(b, t.Name)
	b = append(b, byte(t.Datatype))
	b = appendLen(b, len(t.Shape))
	for _, d := range t.Shape {
		b = binary.AppendUvarint(b, uint64(d))
	}
	b = appendLen(b, len(t.Data))
	if len(t.Data) < inline {
		return append(b, t.Data...)
	}
	return long(b, t.Data)
}

func appendParams(b []byte, params infer.Params) []byte {
	b = appendLen(b, len(params))
	if len(params) > 1 {
		params = slices.Clone(params)
		slices.SortFunc(params, func(x, y infer.Param) int { return strings.Compare(x.Name, y.Name) })
	}
	for i := range params {
		v := &params[i].Value
		b = append(appendText(b, params[i].Name), byte(v.Kind))
		var text bool
		if b, text = AppendScalar(b, v); text {
			b = appendText(b, v.Str)
		}
	}
	return b
}

// AppendScalar appends the value of a parameter in little-endian bytes of a length that
// its kind fixes. text says that it is a string instead, of which nothing was appended.
func AppendScalar(b []byte, v *infer.Value) (_ []byte, text bool) {
	switch v.Kind {
	case infer.KindBool:
		n := byte(0)
		if v.Bool {
			n = 1
		}
		return append(b, n), false
	case infer.KindInt64, infer.KindUint64:
		return binary.LittleEndian.AppendUint64(b, uint64(v.Int)), false
	case infer.KindDouble:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Double)), false
	}
	return b, true
}

// AppendShape appends a shape's dimensions, eight bytes each.
func AppendShape(b []byte, shape []int64) []byte {
	for _, d := range shape {
		b = binary.LittleEndian.AppendUint64(b, uint64(d))
	}
	return b
}
