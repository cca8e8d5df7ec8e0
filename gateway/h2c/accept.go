package h2c

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
)

// MaxBody is the most that the body of a request may have which is upgraded: what every
// client may send ahead on a stream, and on a connection, before it knows more.
const MaxBody = 65535

// Outcome is what became of the start of a connection.
type Outcome int

// The outcomes.
const (
	Unchanged Outcome = iota // it asks for no upgrade: Bytes is what it sent
	Upgraded                 // Bytes is what a client with prior knowledge would have sent
	Refused                  // it was told so, and nothing more is to be served on it
)

// Opening is the start of a connection.
type Opening struct {
	Outcome Outcome
	Bytes   []byte // to be read before the rest of the connection
	// Body is how much of Bytes is data that the client did not send as DATA: who tells
	// the client of space for them tells it of more than there is.
	Body int
}

// Accept looks at the start of a plain-text connection, of which read was read already.
// It reads on until it knows that this is no request for an upgrade, with a head of at most
// maxHead bytes; else it answers 101 and reads on to the client's settings. With an error
// Bytes is still what was read, unless 101 was said.
func Accept(nc net.Conn, read []byte, maxHead int) (Opening, error) {
	b := bytes.Clone(read)
	from, asks := 0, false
	for {
		end, next, one, ok := headEnd(b, from)
		from, asks = next, asks || one
		switch {
		case !ok, end > maxHead, end == 0 && len(b) >= maxHead, end > 0 && !asks:
			return Opening{Bytes: b}, nil
		case end > 0:
			r := parse(string(b[:end]))
			if r == nil {
				return Opening{Bytes: b}, nil
			}
			return r.accept(nc, b, end)
		}
		var err error
		if b, err = more(nc, b, len(b)+1); err != nil {
			return Opening{Bytes: b}, err
		}
	}
}

// more reads until b has n bytes, and as many as come along.
func more(nc net.Conn, b []byte, n int) ([]byte, error) {
	for len(b) < n {
		if cap(b)-len(b) < 512 {
			b = append(make([]byte, 0, max(2*cap(b), 4<<10, n)), b...)
		}
		got, err := nc.Read(b[len(b):cap(b)])
		if b = b[:len(b)+got]; err != nil && len(b) < n {
			return b, err
		}
	}
	return b, nil
}

const (
	switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
	goOn      = "HTTP/1.1 100 Continue\r\n\r\n"
)

// accept upgrades a connection on which b was read, a head of head bytes in front.
func (r *request) accept(nc net.Conn, b []byte, head int) (Opening, error) {
	if r.fault != "" {
		text := r.fault + "\n"
		if !r.expect {
			if _, err := more(nc, b, head+r.length); err != nil { // closing on it would cost the client our answer
				return Opening{Outcome: Refused}, err
			}
		}
		_, err := io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: "+
			strconv.Itoa(len(text))+"\r\n\r\n"+text)
		return Opening{Outcome: Refused}, err
	}
	if r.expect && len(b) < head+r.length {
		if _, err := io.WriteString(nc, goOn); err != nil {
			return Opening{Outcome: Refused}, err
		}
	}
	b, err := more(nc, b, head+r.length)
	if err == nil {
		_, err = io.WriteString(nc, switching)
	}
	if err != nil {
		return Opening{Outcome: Refused}, err
	}
	body, b := b[head:head+r.length], b[head+r.length:]
	if b, err = more(nc, b, len(Preface)+frameHeader); err != nil {
		return Opening{Outcome: Refused}, err
	}
	h := b[len(Preface):]
	length := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	proper := string(b[:len(Preface)]) == Preface && h[3] == typeSettings && h[4]&flagAck == 0 && binary.BigEndian.Uint32(h[5:])<<1 == 0 // but for a bit that is ignored
	if !proper || length%6 != 0 || length > maxFrame-6*maxSettings {
		return Opening{Outcome: Upgraded, Bytes: b}, nil // the server says what is wrong
	}
	end := len(Preface) + frameHeader + length
	if b, err = more(nc, b, end); err != nil {
		return Opening{Outcome: Refused}, err
	}
	settings := merge(r.settings, b[len(Preface)+frameHeader:end])
	out := make([]byte, 0, len(settings)+head+len(body)+len(b)+1<<10)
	out = appendFrame(append(out, Preface...), typeSettings, 0, 0, settings)
	out = r.appendFrames(out, body)
	return Opening{Outcome: Upgraded, Bytes: append(out, b[end:]...), Body: len(body)}, nil
}
