package h2c

import (
	"encoding/binary"
	"strings"
)

// Preface is what a client of HTTP/2 says first (RFC 9113, 3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	frameHeader = 9
	maxFrame    = 16384 // that every peer takes

	typeData, typeHeaders, typeSettings, typeWindow, typeContinuation = 0, 1, 4, 8, 9

	flagEndStream, flagEndHeaders, flagAck = 0x1, 0x4, 0x1
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// AppendInt adds a length with a prefix of 7 bits (RFC 7541, 5.1).
func AppendInt(b []byte, n int) []byte {
	if n < 127 {
		return append(b, byte(n))
	}
	b = append(b, 127)
	for n -= 127; n >= 128; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// appendField adds a literal that changes no table (RFC 7541, 6.2.2).
func appendField(b []byte, name, value string) []byte {
	b = append(AppendInt(append(b, 0), len(name)), name...)
	return append(AppendInt(b, len(value)), value...)
}

// appendFrames adds the request as stream 1, which is half-closed by its client.
func (r *request) appendFrames(b, body []byte) []byte {
	block := appendField(nil, ":method", r.method)
	block = appendField(block, ":scheme", "http")
	block = appendField(block, ":path", r.target)
	block = appendField(block, ":authority", r.host)
	for _, f := range r.fields {
		block = appendField(block, strings.ToLower(f.name), f.value)
	}
	kind, end := byte(typeHeaders), byte(0)
	if len(body) == 0 {
		end = flagEndStream
	}
	for len(block) > maxFrame {
		b = appendFrame(b, kind, end, 1, block[:maxFrame])
		block, kind, end = block[maxFrame:], typeContinuation, 0
	}
	b = appendFrame(b, kind, end|flagEndHeaders, 1, block)
	for len(body) > 0 {
		n, end := min(len(body), maxFrame), byte(0)
		if n == len(body) {
			end = flagEndStream
		}
		b = appendFrame(b, typeData, end, 1, body[:n])
		body = body[n:]
	}
	return b
}

// merge puts early settings in front of others, those alone that nothing behind them
// overrides: net/http takes no setting twice in a frame.
func merge(early, others []byte) []byte {
	var b []byte
	for ; len(early) > 0; early = early[6:] {
		if !sets(early[6:], early) && !sets(others, early) {
			b = append(b, early[:6]...)
		}
	}
	return append(b, others...)
}

// sets says that a list has a setting of the kind of one.
func sets(list, one []byte) bool {
	for ; len(list) > 0; list = list[6:] {
		if list[0] == one[0] && list[1] == one[1] {
			return true
		}
	}
	return false
}
