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
// request stand at its beginning, and so much of its tensors tells requests apart.
const peek = 64 << 10

// readBody reads what the beginning of a call's body says into c. false: it could not be
// read at all.
func readBody(body []byte, h *head, c *Call) bool {
	if h.grpc {
		return readGRPC(body, h.encoding, c)
	}
	body, ok := inflated(body[:min(len(body), decompressed(h.encoding))], h.encoding)
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
		d.add(body[len(doc):])
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
	body, ok := inflated(body[:min(len(body), decompressed(encoding))], encoding)
	if ok {
		readMessage(body, c)
	}
	return ok
}

// decompressed is how many bytes of a body are needed for a peek.
func decompressed(encoding string) int {
	if encoding == "" || encoding == "identity" {
		return peek
	}
	return 8 * peek // what does not shrink is as long as it was, and a little longer
}

// inflated is the beginning of a body without its compression.
func inflated(body []byte, encoding string) ([]byte, bool) {
	var r io.Reader
	var err error
	switch strings.ToLower(encoding) {
	case "", "identity":
		return body, true
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
	out := make([]byte, peek)
	n, err := io.ReadFull(r, out)
	// the body ends early, as a rule: what came before counts
	return out[:n], n > 0 || err == nil
}
