package h1

import "bytes"

// What a request is refused with whose end is elsewhere to different readers.
const (
	twoLengths = `{"error":"the request has both Content-Length and Transfer-Encoding"}`
	oldChunked = `{"error":"HTTP/1.0 has no Transfer-Encoding"}`
)

// ambiguous says why the request that begins with b, and is unusual, is not for the other
// server, which would take it and keep the connection: it has both framings, or chunks that
// its version has not, which net/http passes over. A folded value, a bare LF and what else
// net/http takes don't hide them. Of a head that has not come as a whole that part is looked
// at that has. "": it is unambiguous.
// Source: RFC 9112, 6.1 and 6.3.
func ambiguous(b []byte) string {
	line, rest, _ := bytes.Cut(b, lf)
	old := bytes.HasSuffix(bytes.TrimRight(line, "\r"), []byte(" HTTP/1.0"))
	length, chunked := false, false
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, lf)
		name, _, ok := bytes.Cut(line, []byte(":"))
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			break
		}
		length = length || ok && equalFold(string(name), "Content-Length")
		chunked = chunked || ok && equalFold(string(name), "Transfer-Encoding")
	}
	switch {
	case chunked && length:
		return twoLengths
	case chunked && old:
		return oldChunked
	}
	return ""
}

var lf = []byte("\n")
