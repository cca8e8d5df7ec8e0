package picker

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// readMessage reads the beginning of a ModelInferRequest into c: what is not there yet is
// not needed, or left as it is. It stops at what is no protobuf.
// Source: message ModelInferRequest, proto/inference/grpc_service.proto.
func readMessage(b []byte, c *Call) {
	key := newDigest()
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				break
			}
			b = b[n:]
			continue
		}
		size, n := protowire.ConsumeVarint(b)
		if n < 0 {
			break
		}
		b = b[n:]
		whole := size <= uint64(len(b))
		value := b
		if whole {
			value = b[:size]
		}
		switch {
		case num == 1 && whole:
			c.Model = string(value)
		case num == 2 && whole:
			c.Version = string(value)
		case num == 4 && whole:
			readParameter(value, c)
		case num >= 5: // inputs, outputs and their bytes; the request's id is nothing of the answer
			key.add(value)
		}
		if !whole {
			break
		}
		b = b[size:]
	}
	c.Key = key.sum()
}

// readParameter reads one entry of the map of parameters.
func readParameter(b []byte, c *Call) {
	var name, text string
	var number uint64
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return
		}
		b = b[n:]
		switch num {
		case 1:
			name = string(value)
		case 2:
			text, number = readChoice(value)
		}
	}
	c.parameter(name, text, number)
}

// readChoice reads an InferParameter as a text or a number, where true is 1.
func readChoice(b []byte) (text string, number uint64) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return
			}
			number, b = v, b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return
			}
			text, b = string(v), b[n:]
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return
			}
			b = b[n:]
		}
	}
	return text, number
}

// digest is a hash of parts as they come.
type digest uint64

func newDigest() *digest {
	d := digest(hash("", ""))
	return &d
}

func (d *digest) add(b []byte) {
	h := uint64(*d)
	for len(b) >= 8 { // a word at a time: bodies may have many bytes
		w := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 | uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		h = mix(h ^ w)
		b = b[8:]
	}
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	*d = digest(mix(h + 1))
}

// sum is never 0.
func (d *digest) sum() uint64 { return uint64(*d) | 1 }
