package h2

import "encoding/binary"

// Frame types, flags, settings and error codes of RFC 9113, sections 6 and 7.
const (
	frameData         = 0
	frameHeaders      = 1
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	framePush         = 5
	framePing         = 6
	frameGoAway       = 7
	frameWindow       = 8
	frameContinuation = 9

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20

	settingTableSize  = 1
	settingPush       = 2
	settingStreams    = 3
	settingWindow     = 4
	settingFrame      = 5
	settingHeaderList = 6

	frameHeader   = 9
	initialWindow = 65535
	minMaxFrame   = 16384
	maxMaxFrame   = 1<<24 - 1
	maxWindow     = 1<<31 - 1
	maxStreamID   = 1<<31 - 1

	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// errCode is an error code of RFC 9113, section 7.
type errCode uint32

const (
	codeNo              errCode = 0
	codeProtocol        errCode = 1
	codeFlowControl     errCode = 3
	codeStreamClosed    errCode = 5
	codeFrameSize       errCode = 6
	codeRefusedStream   errCode = 7
	codeCancel          errCode = 8
	codeCompression     errCode = 9
	codeEnhanceYourCalm errCode = 11
)

// connError ends a connection with a GOAWAY of its code and text.
type connError struct {
	code errCode
	text string
}

func (e *connError) Error() string { return "h2: " + e.text }

// head is a frame's header.
type head struct {
	length int
	kind   byte
	flags  byte
	stream uint32
}

func parseHead(b []byte) head {
	return head{length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: b[3], flags: b[4],
		stream: binary.BigEndian.Uint32(b[5:]) & maxStreamID}
}

func (h head) has(flag byte) bool { return h.flags&flag != 0 }

func appendFrame(b []byte, length int, kind, flags byte, stream uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags, byte(stream>>24), byte(stream>>16), byte(stream>>8),
		byte(stream))
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

func appendReset(b []byte, stream uint32, code errCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, frameReset, 0, stream), uint32(code))
}

func appendWindow(b []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, frameWindow, 0, stream), uint32(n))
}

func appendPing(b []byte, flags byte, data [8]byte) []byte {
	return append(appendFrame(b, 8, framePing, flags, 0), data[:]...)
}

func appendGoAway(b []byte, last uint32, code errCode, text string) []byte {
	b = appendFrame(b, 8+len(text), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	return append(binary.BigEndian.AppendUint32(b, uint32(code)), text...)
}

// unpad cuts padding and, of HEADERS, the priority off a payload.
func unpad(h head, b []byte) ([]byte, error) {
	pad := 0
	if h.has(flagPadded) {
		if len(b) < 1 {
			return nil, &connError{codeFrameSize, "padded frame without its pad length"}
		}
		pad, b = int(b[0]), b[1:]
	}
	if h.kind == frameHeaders && h.has(flagPriority) {
		if len(b) < 5 {
			return nil, &connError{codeFrameSize, "HEADERS frame without its priority"}
		}
		if binary.BigEndian.Uint32(b)&maxStreamID == h.stream {
			return nil, &connError{codeProtocol, "stream depends on itself"}
		}
		b = b[5:]
	}
	if pad > len(b) {
		return nil, &connError{codeProtocol, "padding longer than its frame"}
	}
	return b[:len(b)-pad], nil
}
