package h2

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
)

// header is the head of one call. It is never changed once it is parsed: calls whose
// header blocks are equal share it.
type header struct {
	path        string
	authority   string
	contentType string
	encoding    string // grpc-encoding; "" is identity
	accept      string // grpc-accept-encoding
	timeout     time.Duration
	timed       bool // grpc-timeout was given
	fields      []hpack.HeaderField

	method    string
	scheme    string
	regular   bool   // a regular field was seen: no pseudo field may follow
	size      int    // as RFC 9113, 6.5.2 counts
	malformed string // why the call is malformed (RFC 9113, 8.1.1); "" where it is not
	large     bool   // over the limit
	pseudos   bool   // there is a pseudo field, which trailers may not have
	refused   string // why grpc-go would refuse the call, with code Internal; "" where it would not
	hosts     int    // host headers
	length    int64  // content-length; -1: not given
}

// missing is the fault of every block of trailers.
const missing = "missing pseudo-header"

// get is the first value of a header, "" where there is none.
func (h *header) get(key string) string {
	for i := range h.fields {
		if h.fields[i].Name == key {
			return h.fields[i].Value
		}
	}
	return ""
}

// metadata is the header as grpc-go's services know it.
func (h *header) metadata() metadata.MD {
	md := make(metadata.MD, len(h.fields)+1)
	if h.authority != "" {
		md[":authority"] = []string{h.authority}
	}
	for i := range h.fields {
		f := &h.fields[i]
		switch f.Name {
		case "te", "grpc-timeout", "grpc-encoding", "grpc-message-type", "grpc-message", "grpc-status":
			continue
		}
		value := f.Value
		if strings.HasSuffix(f.Name, "-bin") {
			value = binaryValue(value)
		}
		md[f.Name] = append(md[f.Name], value)
	}
	return md
}

// add takes one field; the rules are those of RFC 9113, 8.2 and 8.3.
func (h *header) add(f hpack.HeaderField, limit int) {
	h.size += int(f.Size())
	if h.size > limit {
		h.large = true
		return
	}
	if strings.HasPrefix(f.Name, ":") {
		h.pseudo(f)
		return
	}
	h.regular = true
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		h.fault("connection-specific header " + f.Name)
	case "te":
		if f.Value != "trailers" {
			h.fault("header te is not trailers")
		}
	case "content-type":
		if !grpcType(h.contentType) { // as grpc-go: one of several is enough
			h.contentType = f.Value
		}
	case "grpc-encoding":
		h.encoding = f.Value
	case "grpc-accept-encoding":
		h.accept = f.Value
	case "grpc-timeout":
		d, err := parseTimeout(f.Value)
		if err != nil {
			h.refused = "malformed grpc-timeout: " + err.Error()
			break
		}
		h.timeout, h.timed = d, true
	case "content-length":
		n, err := strconv.ParseUint(f.Value, 10, 62)
		if err != nil || h.length >= 0 && h.length != int64(n) {
			h.fault("invalid content-length")
		}
		h.length = int64(n)
	case "host":
		h.hosts++
	default:
		if !validName(f.Name) {
			h.fault("invalid header name")
		}
		if _, err := decodeBinary(f.Name, f.Value); err != nil {
			h.refused = fmt.Sprintf("malformed binary metadata %q in header %q: %v", f.Value, f.Name, err)
		}
	}
	if !validValue(f.Value) {
		h.fault("invalid header value")
	}
	h.fields = append(h.fields, f)
}

func (h *header) pseudo(f hpack.HeaderField) {
	set := func(p *string) {
		if *p != "" || f.Value == "" {
			h.fault("pseudo-header " + f.Name + " twice or empty")
		}
		*p = f.Value
	}
	h.pseudos = true
	if !validValue(f.Value) {
		h.fault("invalid header value")
	}
	if h.regular {
		h.fault("pseudo-header behind a regular one")
	}
	switch f.Name {
	case ":path":
		set(&h.path)
	case ":method":
		set(&h.method)
	case ":scheme":
		set(&h.scheme)
	case ":authority":
		set(&h.authority)
	default:
		h.fault("unknown pseudo-header")
	}
}

func (h *header) fault(text string) {
	if h.malformed == "" {
		h.malformed = text
	}
}

// finish checks what must be there.
func (h *header) finish() {
	if h.method == "" || h.path == "" || h.scheme == "" {
		h.fault(missing)
	}
}

// validName says that a name is a lower-case token (RFC 9113, 8.2.1).
func validName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c >= 0x7f || c == ':' || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c == 0 || c == '\n' || c == '\r' {
			return false
		}
	}
	return true
}

// parseTimeout reads grpc-timeout: up to eight digits and a unit. The errors' texts are
// grpc-go's, since they reach clients.
// Source: "Timeout" in gRPC over HTTP2.
func parseTimeout(s string) (time.Duration, error) {
	switch {
	case len(s) < 2:
		return 0, fmt.Errorf("transport: timeout string is too short: %q", s)
	case len(s) > 9:
		return 0, fmt.Errorf("transport: timeout string is too long: %q", s)
	}
	var unit time.Duration
	switch s[len(s)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", s)
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 64)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt64/uint64(unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}

// headerReader decodes header blocks of one connection. A client's calls are mostly
// alike, so the last block that changes nothing in the table is kept with what it says.
type headerReader struct {
	dec   *hpack.Decoder
	limit int
	into  *header

	size   int    // of the table, as the client said last; -1: it has not
	block  []byte // a steady block
	parsed *header
}

// maxSteady bounds the block that is kept.
const maxSteady = 2 << 10

func newHeaderReader(limit int) *headerReader {
	r := &headerReader{limit: limit, size: -1}
	r.dec = hpack.NewDecoder(4096, func(f hpack.HeaderField) { r.into.add(f, limit) })
	r.dec.SetMaxStringLength(limit)
	return r
}

// read decodes one complete block.
func (r *headerReader) read(block []byte) (*header, error) {
	if r.parsed != nil && bytes.Equal(block, r.block) {
		return r.parsed, nil
	}
	h := &header{length: -1}
	r.into = h
	_, err := r.dec.Write(block)
	if err == nil {
		err = r.dec.Close()
	}
	if err != nil {
		return nil, &connError{codeCompression, "header block: " + err.Error()}
	}
	h.finish()
	r.parsed = nil
	steady, proper := r.survey(block)
	if !proper {
		return nil, &connError{codeCompression, "header block: a table size update behind a field"}
	}
	if steady && len(block) <= maxSteady {
		r.block, r.parsed = append(r.block[:0], block...), h
	}
	return h, nil
}

// survey says whether a block is steady: that it changes nothing in the table, since its
// fields are indexed, or literals that are not to be indexed, and the table's size is what
// it was (RFC 7541, 6.1, 6.2.2, 6.2.3 and 6.3). And whether it is proper: that sizes stand in
// front of all fields (4.2), which the decoder asks for only while the table holds
// something. The decoder has found the block valid.
func (r *headerReader) survey(block []byte) (steady, proper bool) {
	steady, proper = true, true
	fields := false
	for len(block) > 0 {
		b := block[0]
		prefix := uint(4)
		switch {
		case b >= 0x80:
			_, block = skipInt(block, 7)
			fields = true
			continue
		case b >= 0x40: // incremental indexing
			steady, prefix, r.size = false, 6, -1
		case b >= 0x20:
			var size int
			size, block = skipInt(block, 5)
			steady, r.size, proper = steady && size == r.size, size, proper && !fields
			continue
		}
		fields = true
		index, rest := skipInt(block, prefix)
		if index == 0 {
			rest = skipString(rest)
		}
		block = skipString(rest)
	}
	return steady, proper
}

// skipInt reads an integer with a prefix of so many bits (RFC 7541, 5.1).
func skipInt(b []byte, bits uint) (int, []byte) {
	if len(b) == 0 {
		return 0, nil
	}
	most := 1<<bits - 1
	n := int(b[0]) & most
	b = b[1:]
	if n < most {
		return n, b
	}
	for shift := uint(0); len(b) > 0 && shift < 28; shift += 7 {
		c := b[0]
		b = b[1:]
		n += int(c&0x7f) << shift
		if c < 0x80 {
			return n, b
		}
	}
	return 0, []byte{0x40} // longer than any that matters: what is indexed anew, not steady
}

// skipString passes a string over (RFC 7541, 5.2).
func skipString(b []byte) []byte {
	n, rest := skipInt(b, 7)
	return rest[min(n, len(rest)):]
}
