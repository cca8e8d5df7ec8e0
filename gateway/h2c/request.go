package h2c

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// request is an HTTP/1.1 request that asks to be upgraded.
type request struct {
	method, target, host string
	fields               []field // without those of the connection
	length               int     // of the body
	expect               bool    // 100-continue
	settings             []byte  // decoded HTTP2-Settings
	fault                string  // why the upgrade is refused; "": it is not
}

// field is one field; its name is in lower case.
type field struct{ name, value string }

// headEnd looks at what has come of a request's head, of which no line before from was
// looked at. end is its length, 0 while it goes on; next is where the first line begins
// that is not complete. asks says that a line was an Upgrade field. ok is false as soon as this
// can be no request for an upgrade.
func headEnd(b []byte, from int) (end, next int, asks, ok bool) {
	for {
		if len(b) > 0 && (b[0] < 'A' || b[0] > 'Z') { // no method
			return 0, from, asks, false
		}
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return 0, from, asks, true
		}
		line := b[from : from+i+1]
		if i == 0 || line[i-1] != '\r' {
			return 0, from, asks, false
		}
		line = line[:i-1]
		switch {
		case from == 0:
			if !bytes.HasSuffix(line, []byte(" HTTP/1.1")) {
				return 0, from, asks, false
			}
		case len(line) == 0:
			return from + i + 1, from, asks, true
		case bytes.IndexByte(line, ':') <= 0:
			return 0, from, asks, false
		default:
			asks = asks || len(line) > 8 && strings.EqualFold(string(line[:8]), "upgrade:")
		}
		from += i + 1
	}
}

// parse reads a complete head; nil: it asks for no upgrade, or not in the way that a
// server must understand.
func parse(head string) *request {
	line, rest, _ := strings.Cut(head, "\r\n")
	r := &request{}
	var ok bool
	if r.method, line, ok = strings.Cut(line, " "); !ok || !token(r.method) {
		return nil
	}
	r.target, _, _ = strings.Cut(line, " ")
	if r.target == "" || r.target[0] != '/' || !visible(r.target) || strings.Count(line, " ") != 1 {
		return nil
	}
	p := fields{request: r}
	for {
		line, rest, _ = strings.Cut(rest, "\r\n")
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		if !token(name) || !p.add(strings.ToLower(name), strings.Trim(value, " \t")) {
			return nil
		}
	}
	if p.hosts != 1 || p.settings != 1 || !has(p.upgrade, "h2c") || !has(p.connection, "upgrade") || !has(p.connection, "http2-settings") {
		return nil
	}
	kept := r.fields[:0]
	for _, f := range r.fields {
		if !has(p.connection, f.name) {
			kept = append(kept, f)
		}
	}
	r.fields = kept
	return r
}

// fields gathers the fields of a head.
type fields struct {
	*request
	upgrade, connection string // lists
	hosts, settings     int
	lengths             int
}

// add takes one field. False: the request is not for an upgrade.
func (p *fields) add(name, value string) bool {
	if !visible(value) {
		return false
	}
	switch name {
	case "host":
		p.host = value
		p.hosts++
		return value != "" && !strings.ContainsAny(value, " \t,/@")
	case "connection":
		p.connection += "," + value
	case "upgrade":
		p.upgrade += "," + value
	case "http2-settings":
		p.settings++
		p.request.settings, p.fault = settings(value)
	case "transfer-encoding":
		return false // the body's length is not known
	case "content-length":
		n, ok := number(value)
		if p.lengths++; !ok || p.lengths > 1 {
			return false
		}
		p.length = n
		p.request.fields = append(p.request.fields, field{name, value})
	case "expect":
		p.expect = strings.EqualFold(value, "100-continue")
		return p.expect
	case "keep-alive", "proxy-connection":
	case "te":
		if has(value, "trailers") {
			p.request.fields = append(p.request.fields, field{name, "trailers"})
		}
	default:
		p.request.fields = append(p.request.fields, field{name, value})
		return !proxied(name)
	}
	return true
}

// proxied says that a field is one which proxies add. One that passes an upgrade on would
// carry the client's further requests unseen: past its rules, and as its own, since what it
// says of its client stands in the first one alone.
func proxied(name string) bool {
	switch name {
	case "forwarded", "via", "x-real-ip":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-") || strings.HasPrefix(name, "x-envoy-")
}

// number reads a body's length; false: it is none, or too large.
func number(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		if n = n*10 + int(s[i]-'0'); n > MaxBody {
			return 0, false
		}
	}
	return n, s != ""
}

// has says that a comma-separated list has a token, in any case.
func has(list, token string) bool {
	for list != "" {
		var one string
		one, list, _ = strings.Cut(list, ",")
		if strings.EqualFold(strings.Trim(one, " \t"), token) {
			return true
		}
	}
	return false
}

// maxSettings is more than there are.
const maxSettings = 32

// settings decodes HTTP2-Settings: the payload of a SETTINGS frame in base64url without
// padding (RFC 7540, 3.2.1). fault says what is wrong with it.
func settings(value string) (payload []byte, fault string) {
	payload, err := base64.RawURLEncoding.DecodeString(value)
	switch {
	case err != nil:
		return nil, "HTTP2-Settings is not base64url"
	case len(payload)%6 != 0:
		return nil, "HTTP2-Settings is not a list of settings"
	case len(payload) > 6*maxSettings:
		return nil, "HTTP2-Settings has too many settings"
	}
	for b := payload; len(b) > 0; b = b[6:] {
		id, v := binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])
		if id == 2 && v > 1 || id == 4 && v > 1<<31-1 || id == 5 && (v < 1<<14 || v > 1<<24-1) {
			return nil, "HTTP2-Settings has a value out of range"
		}
	}
	return payload, ""
}

// token says that s is a token (RFC 9110, 5.6.2).
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c|0x20 || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// visible says that s has no control characters.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
