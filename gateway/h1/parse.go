package h1

import "strings"

// parser reads one head. What it does not take for granted is for the other server,
// which says what is wrong.
type parser struct {
	req     *Request
	length  int64
	chunked bool
	expect  bool
	close   bool
	refuse  bool // its framing is ambiguous

	hosts, lengths int
}

// parse reads a complete head, which ends with an empty line. False: it is unusual.
func (p *parser) parse(head string) bool {
	line, rest, _ := strings.Cut(head, "\r\n")
	if !p.requestLine(line) {
		return false
	}
	fields := p.req.Fields[:0]
	for {
		line, rest, _ = strings.Cut(rest, "\r\n")
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token(name) {
			return false
		}
		value = strings.Trim(value, " \t")
		if !visible(value) || !p.field(name, value) {
			return false
		}
		if fields = append(fields, Field{name, value}); len(fields) > maxFields {
			return false
		}
	}
	p.req.Fields = fields
	p.refuse = p.chunked && p.lengths > 0
	return rest == "" && p.hosts == 1
}

// maxFields bounds the fields of a head.
const maxFields = 256

func (p *parser) requestLine(line string) bool {
	method, line, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(line, " ")
	if version != "HTTP/1.1" || target == "" || target[0] != '/' {
		return false
	}
	switch method {
	case "GET", "POST":
	default:
		return false
	}
	path, query, _ := strings.Cut(target, "?")
	for i := range len(path) {
		if !pathByte[path[i]] {
			return false
		}
		if path[i] == '%' && (i+2 >= len(path) || !hex(path[i+1]) || !hex(path[i+2])) {
			return false
		}
	}
	for i := range len(query) {
		if query[i] <= ' ' || query[i] >= 0x7f || query[i] == '#' {
			return false
		}
	}
	p.req.Method, p.req.Path = method, path
	return true
}

// field looks at the fields that mean something to the transport.
func (p *parser) field(name, value string) bool {
	switch len(name) {
	case 4:
		if equalFold(name, "Host") {
			p.hosts++
			return host(value)
		}
	case 6:
		if equalFold(name, "Expect") {
			p.expect = equalFold(value, "100-continue")
			return p.expect
		}
	case 7:
		if equalFold(name, "Upgrade") || equalFold(name, "Trailer") {
			return false
		}
	case 10:
		if equalFold(name, "Connection") {
			switch {
			case equalFold(value, "close"):
				p.close = true
			case !equalFold(value, "keep-alive"):
				return false
			}
		}
	case 14:
		if equalFold(name, "Content-Length") {
			p.lengths++
			return p.lengths == 1 && p.number(value)
		}
	case 17:
		if equalFold(name, "Transfer-Encoding") {
			if p.chunked || !equalFold(value, "chunked") {
				return false
			}
			p.chunked = true
		}
	}
	return true
}

func (p *parser) number(s string) bool {
	if s == "" || len(s) > 18 {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		p.length = p.length*10 + int64(s[i]-'0')
	}
	return true
}

// pathByte are the bytes of a path that stand for themselves (RFC 3986, 3.3), and '%'.
var pathByte = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/%")

// hostByte are those of a host and its port that are seen in practice.
var hostByte = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:[]")

func host(s string) bool {
	for i := range len(s) {
		if !hostByte[s[i]] {
			return false
		}
	}
	return s != ""
}

// tokenByte are those of a field name (RFC 9110, 5.6.2).
var tokenByte = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")

func set(s string) (in [256]bool) {
	for i := range len(s) {
		in[s[i]] = true
	}
	return in
}

func hex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

func token(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != ""
}

// visible says that a value has no control characters. Bytes above 0x7f are opaque
// (RFC 9110, 5.5).
func visible(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// equalFold compares ASCII letters in any case.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		x, y := a[i], b[i]
		if x != y && (x^y != 0x20 || x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return true
}
