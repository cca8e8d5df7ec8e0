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

// header is the head of one call, but for its grpc-timeout. It is never changed once it is
// parsed, but for admitted: calls whose heads are equal share it.
type header struct {
	path        string
	authority   string
	contentType string
	encoding    string // grpc-encoding; "" is identity
	accept      string // grpc-accept-encoding
	fields      []hpack.HeaderField
	lengths     uint64 // a bit for each length, modulo 64, that a name of fields has

	admitted *method // what it leads to, once nothing was found wrong with it; the reading goroutine's alone

	method    string
	scheme    string
	regular   bool   // a regular field was seen: no pseudo field may follow
	malformed string // why the call is malformed (RFC 9113, 8.1.1); "" where it is not
	large     bool   // over the limit
	pseudos   bool   // there is a pseudo field, which trailers may not have
	refused   string // why grpc-go would refuse the call, with code Internal; "" where it would not
	hosts     int    // host headers
	length    int64  // content-length; -1: not given
}

// missing is the fault of every block of trailers.
const missing = "missing pseudo-header"

// lacks says that no header has a name, as its length tells.
func (h *header) lacks(key string) bool { return h.lengths>>(len(key)&63)&1 == 0 }

// get is the first value of a header, "" where there is none.
func (h *header) get(key string) string {
	if h.lacks(key) {
		return ""
	}
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
		case "te", "grpc-encoding", "grpc-message-type", "grpc-message", "grpc-status":
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
func (h *header) add(f hpack.HeaderField) {
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
	case timeoutName:
		if _, err := parseTimeout(f.Value); err != nil {
			h.refused = "malformed grpc-timeout: " + err.Error()
		}
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
	if f.Name == timeoutName {
		return
	}
	h.fields = append(h.fields, f)
	h.lengths |= 1 << (len(f.Name) & 63)
}

// timeoutName is the header that differs from call to call. It is no metadata.
const timeoutName = "grpc-timeout"

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
		if c := v[i]; c <= '\r' && (c == 0 || c == '\n' || c == '\r') {
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

// headerReader decodes header blocks of one connection. A client's calls are mostly alike:
// the last block that changes nothing in the table is kept with what it says, and so is what
// the last block said, whatever its bytes, to be recognized where it is said again.
type headerReader struct {
	dec   *hpack.Decoder
	limit int

	// Of the block that is read.
	raw     []hpack.HeaderField
	size    int           // of the fields, as RFC 9113, 6.5.2 counts
	timeout time.Duration // grpc-timeout
	timed   bool          // it was given

	table  int    // the table's size, as the client said last; -1: it has not
	block  []byte // a steady block
	parsed *header
	given  time.Duration // its timeout
	timely bool          // and whether it was given

	said []hpack.HeaderField // all fields of the last block, and what they say
	last *header
}

// maxSteady bounds the block that is kept, maxSaid the fields, as their size is counted, and
// maxRaw the memory that is kept for those of the next block.
const (
	maxSteady = 2 << 10
	maxSaid   = 8 << 10
	maxRaw    = 512
)

func newHeaderReader(limit int) *headerReader {
	r := &headerReader{limit: limit, table: -1}
	r.dec = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) {
		if r.size += int(f.Size()); r.size <= limit {
			r.raw = append(r.raw, f)
		}
	})
	r.dec.SetMaxStringLength(limit)
	return r
}

// read decodes one complete block. Its timeout is r's until the next one.
func (r *headerReader) read(block []byte) (*header, error) {
	if r.parsed != nil && bytes.Equal(block, r.block) {
		r.timeout, r.timed = r.given, r.timely
		return r.parsed, nil
	}
	r.raw, r.size, r.timeout, r.timed = r.raw[:0], 0, 0, false
	_, err := r.dec.Write(block)
	if err == nil {
		err = r.dec.Close()
	}
	if err != nil {
		return nil, &connError{codeCompression, "header block: " + err.Error()}
	}
	h := r.header()
	r.parsed = nil
	steady, proper := r.survey(block)
	if !proper {
		return nil, &connError{codeCompression, "header block: a table size update behind a field"}
	}
	if steady && len(block) <= maxSteady {
		r.block, r.parsed, r.given, r.timely = append(r.block[:0], block...), h, r.timeout, r.timed
	}
	return h, nil
}

// header is what the fields that were decoded say.
func (r *headerReader) header() *header {
	h := r.again()
	if h == nil {
		h = &header{length: -1, large: r.size > r.limit, fields: make([]hpack.HeaderField, 0, len(r.raw))}
		for _, f := range r.raw {
			h.add(f)
		}
		h.finish()
		r.last = nil
		if r.size <= maxSaid && h.malformed == "" && h.refused == "" {
			r.last = h
			r.said, r.raw = r.raw, r.said
		}
	}
	clear(r.raw)
	if cap(r.raw) > maxRaw {
		r.raw = nil
	}
	return h
}

// again is the last header, if the fields say the same; nil: they don't. It reads the
// timeout on the way.
func (r *headerReader) again() *header {
	same := r.last != nil && len(r.raw) == len(r.said) && r.size <= r.limit
	for i := range r.raw {
		f := &r.raw[i]
		if f.Name == timeoutName {
			d, err := parseTimeout(f.Value)
			if err == nil {
				r.timeout, r.timed = d, true
			}
			same = same && err == nil && r.said[i].Name == timeoutName
			continue
		}
		same = same && *f == r.said[i]
	}
	if !same {
		return nil
	}
	return r.last
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
			steady, prefix, r.table = false, 6, -1
		case b >= 0x20:
			var size int
			size, block = skipInt(block, 5)
			steady, r.table, proper = steady && size == r.table, size, proper && !fields
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
