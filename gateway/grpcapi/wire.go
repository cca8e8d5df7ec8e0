package grpcapi

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// errMalformed is the original's answer to bytes that are no message of the type.
// Source: the original over gRPC, asked with broken messages.
var errMalformed = infer.CallerErrorf("Unable to parse request")

// field is one field of a message: its number, its wire type, and what stood there.
type field struct {
	num  protowire.Number
	typ  protowire.Type
	val  []byte // BytesType: the content, a view
	bits uint64 // VarintType, Fixed32Type, Fixed64Type
}

// cursor reads the fields of a message one by one.
type cursor struct{ b []byte }

// next reads a field, groups are passed over whole. False is a malformed message.
func (c *cursor) next(f *field) bool {
	tag, n := varint(c.b)
	if n <= 0 {
		return false
	}
	c.b = c.b[n:]
	num := tag >> 3
	if num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return false
	}
	f.num, f.typ = protowire.Number(num), protowire.Type(tag&7)
	switch f.typ {
	case protowire.BytesType:
		l, n := varint(c.b)
		if n <= 0 || l > uint64(len(c.b)-n) {
			return false
		}
		end := n + int(l)
		f.val = c.b[n:end:end]
		c.b = c.b[end:]
	case protowire.VarintType:
		if f.bits, n = varint(c.b); n <= 0 {
			return false
		}
		c.b = c.b[n:]
	default:
		if n = protowire.ConsumeFieldValue(f.num, f.typ, c.b); n < 0 {
			return false
		}
		switch f.typ {
		case protowire.Fixed32Type:
			v, _ := protowire.ConsumeFixed32(c.b)
			f.bits = uint64(v)
		case protowire.Fixed64Type:
			f.bits, _ = protowire.ConsumeFixed64(c.b)
		}
		c.b = c.b[n:]
	}
	return true
}

// varint is protowire.ConsumeVarint with its one-byte case in line.
func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// isBytes says that f is field num, written as bytes; a field of another wire type
// than its message declares counts as unknown, as in every protobuf decoder.
func (f *field) isBytes(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.BytesType
}

// names keeps strings that come again and again (models, tensors), so that only the
// first request that names them allocates. It is direct-mapped and so bounded.
type names [64]string

const longestKeptName = 64

// of gives b as a string; false when it is not UTF-8, which proto3 strings must be.
func (t *names) of(b []byte) (string, bool) {
	n := len(b)
	if n == 0 {
		return "", true
	}
	if n > longestKeptName {
		return string(b), utf8.Valid(b)
	}
	slot := &t[(uint(n)*31^uint(b[0])*7^uint(b[n-1])^uint(b[n/2])*13)%uint(len(t))]
	if *slot == string(b) {
		return *slot, true
	}
	if !utf8.Valid(b) {
		return "", false
	}
	*slot = string(b)
	return *slot, true
}
