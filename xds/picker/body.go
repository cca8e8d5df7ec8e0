package picker

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"io"
	"strings"
)

// peek is how much of a body is looked at, decompressed. The names and parameters of a
// message stand at its beginning, and so much of its tensors tells requests apart. In
// JSON, whose members have no order, a sequence's parameters may stand behind its
// tensors: there the whole body counts where it may have some, or so much as deep of a
// compressed one.
const (
	peek = 64 << 10
	deep = 1 << 20
)

// readBody reads what the beginning of a call's body says into c. false: it could not be
// read at all.
func readBody(body []byte, h *head, c *Call) bool {
	if h.grpc {
		return readGRPC(body, h.encoding, c)
	}
	most := peek
	if h.sequence {
		most = deep
		if plainBody(h.encoding) {
			most = max(len(body), peek)
		}
	}
	body, ok := inflated(body, h.encoding, most)
	if !ok {
		return false
	}
	doc := body
	if h.json > 0 && h.json < int64(len(body)) {
		doc = body[:h.json]
	}
	readDocument(doc, c)
	if len(doc) < len(body) { // tensors behind the JSON are of the answer, too
		d := digest(c.Key)
		d.add(body[len(doc):min(len(body), len(doc)+peek)])
		c.Key = d.sum()
	}
	return true
}

// readGRPC reads the beginning of the first message.
// Source: PROTOCOL-HTTP2 of gRPC: a flag and four bytes of length before each message.
func readGRPC(body []byte, encoding string, c *Call) bool {
	if len(body) < 5 {
		return false
	}
	compressed, size := body[0] == 1, int64(binary.BigEndian.Uint32(body[1:5]))
	body = body[5:]
	body = body[:min(size, int64(len(body)))]
	if !compressed {
		encoding = ""
	}
	body, ok := inflated(body, encoding, peek)
	if ok {
		readMessage(body, c)
	}
	return ok
}

// plainBody says that a body is not compressed.
func plainBody(encoding string) bool {
	return encoding == "" || strings.EqualFold(encoding, "identity")
}

// inflated is the beginning of a body without its compression, at most so many bytes.
func inflated(body []byte, encoding string, most int) ([]byte, bool) {
	if plainBody(encoding) {
		return body[:min(len(body), most)], true
	}
	body = body[:min(len(body), 8*most)] // what does not shrink is as long as it was, and a little longer
	var r io.Reader
	var err error
	switch strings.ToLower(encoding) {
	case "gzip":
		r, err = gzip.NewReader(bytes.NewReader(body))
	case "deflate":
		r, err = zlib.NewReader(bytes.NewReader(body))
	default:
		return nil, false
	}
	if err != nil {
		return nil, false
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(most)))
	// the body ends early, as a rule: what came before counts
	return out, len(out) > 0 || err == nil
}
