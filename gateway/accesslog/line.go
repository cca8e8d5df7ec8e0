package accesslog

import (
	"encoding/hex"
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/sluice-serve/sluice/gateway/timing"
	"github.com/sluice-serve/sluice/infer"
)

// maxText bounds each text that a client chose, in bytes.
const maxText = 256

// line is memory to encode one call in.
type line struct {
	b      []byte
	second int64 // Unix second that stamp shows
	stamp  [20]byte
}

// encode writes a call that ends at wall (Unix nanoseconds) and now (infer.Now).
func (l *line) encode(env *infer.Envelope, end *infer.End, wall, now int64, oneOf int) {
	l.b = append(l.b[:0], `{"time":"`...)
	l.time(wall)
	l.b = append(l.b, `","outcome":"`...)
	l.b = append(l.b, Outcome(env, end)...)
	l.b = append(l.b, '"')
	l.call(env, end)
	l.result(env, end)
	l.ids(env, end.Request)
	l.who(env)
	if end.Request != nil {
		l.request(end.Request)
	} else if env.Model != "" {
		l.text("model", env.Model)
		l.text("version", env.Version)
	}
	l.spent(env, end, now)
	l.number("received", end.Received)
	l.number("sent", end.Sent)
	if oneOf > 1 {
		l.number("one_of", int64(oneOf))
	}
	l.b = append(l.b, '}', '\n')
}

// time writes RFC 3339 with microseconds; the date and time of a second are made once.
func (l *line) time(wall int64) {
	second := wall / 1e9
	if second != l.second {
		l.second = second
		time.Unix(second, 0).UTC().AppendFormat(l.stamp[:0], "2006-01-02T15:04:05.")
	}
	l.b = append(l.b, l.stamp[:]...)
	us := wall % 1e9 / 1000
	for div := int64(100000); div > 0; div /= 10 {
		l.b = append(l.b, byte('0'+us/div%10))
	}
	l.b = append(l.b, 'Z')
}

func (l *line) call(env *infer.Envelope, end *infer.End) {
	l.plain("protocol", env.Protocol)
	if env.Protocol == "grpc" {
		l.text("rpc", env.Method)
		l.number("grpc_code", int64(end.Status))
		return
	}
	l.text("method", env.Method)
	l.text("path", env.Path)
	l.number("status", int64(end.Status))
}

func (l *line) result(env *infer.Envelope, end *infer.End) {
	if end.Err == nil {
		return
	}
	if !transport(env, end.Err) { // else grpc_code says all there is
		l.plain("code", infer.CodeOf(end.Err).String())
	}
	if r := infer.ReasonOf(end.Err); r != "" {
		l.plain("reason", string(r))
	}
	l.text("error", end.Err.Error())
}

func (l *line) ids(env *infer.Envelope, req *infer.Request) {
	switch {
	case env.RequestID != "":
		l.text("request_id", env.RequestID)
	case req != nil:
		l.text("request_id", req.ID)
	}
	if id := env.Span.Trace; id != (infer.TraceID{}) {
		l.key("trace_id")
		l.b = append(l.b, '"')
		l.b = hex.AppendEncode(l.b, id[:])
		l.b = append(l.b, '"')
		if env.Span.Sampled {
			l.key("sampled")
			l.b = append(l.b, "true"...)
		}
	}
}

func (l *line) who(env *infer.Envelope) {
	if p := env.Principal; p != nil {
		l.text("principal", p.Name)
		l.text("auth", p.Method)
	}
	switch {
	case env.Unix:
		l.plain("remote", "unix")
	case env.Remote.IsValid():
		l.key("remote")
		l.b = append(l.b, '"')
		l.b = netip.AddrPortFrom(env.Remote.Addr().Unmap(), env.Remote.Port()).AppendTo(l.b)
		l.b = append(l.b, '"')
	}
}

func (l *line) request(req *infer.Request) {
	l.text("model", req.Model)
	if req.Served != "" {
		l.text("version", req.Served)
	} else {
		l.text("version", req.Version)
	}
	if req.Rows > 0 {
		l.number("rows", int64(req.Rows))
	}
	if n := req.Times.BatchRows; n > 0 {
		l.number("batch", int64(n))
	}
	l.plain("cache", req.Times.Cache.String())
}

func (l *line) spent(env *infer.Envelope, end *infer.End, now int64) {
	s := timing.Of(env, end.Request, now)
	l.micros("queue_us", s.Queue)
	l.micros("compute_us", s.Compute)
	l.micros("cache_us", s.Cache)
	l.micros("total_us", s.Total)
}

func (l *line) key(name string) {
	l.b = append(l.b, ',', '"')
	l.b = append(l.b, name...)
	l.b = append(l.b, '"', ':')
}

// plain writes a word of ours, which needs no escapes; "" writes nothing.
func (l *line) plain(name, v string) {
	if v == "" {
		return
	}
	l.key(name)
	l.b = append(l.b, '"')
	l.b = append(l.b, v...)
	l.b = append(l.b, '"')
}

// text writes what somebody else chose; "" writes nothing.
func (l *line) text(name, v string) {
	if v == "" {
		return
	}
	l.key(name)
	l.b = appendText(l.b, v)
}

func (l *line) number(name string, v int64) {
	l.key(name)
	l.b = strconv.AppendInt(l.b, v, 10)
}

func (l *line) micros(name string, ns int64) {
	if ns >= 0 {
		l.number(name, ns/1000)
	}
}

const digits = "0123456789abcdef"

// appendText writes s as a JSON string of at most maxText bytes of s, "…" where it was
// cut. What is no UTF-8 becomes U+FFFD; control characters, and those that some readers
// take for the end of a line, are escaped.
func appendText(b []byte, s string) []byte {
	short := false
	if len(s) > maxText {
		s, short = s[:maxText], true
		for len(s) > 0 { // no half of a character
			if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n > 1 || len(s) <= maxText-utf8.UTFMax {
				break
			}
			s = s[:len(s)-1]
		}
	}
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[from:i]...)
			b = appendEscaped(b, rune(c))
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r != utf8.RuneError || n > 1) && !breaks(r) {
			i += n
			continue
		}
		b = append(b, s[from:i]...)
		b = appendEscaped(b, r)
		i += n
		from = i
	}
	b = append(b, s[from:]...)
	if short {
		b = append(b, "…"...)
	}
	return append(b, '"')
}

// breaks says that a character above ASCII steers terminals or ends lines: C1 controls,
// the separators, and what turns the direction of text.
func breaks(r rune) bool {
	return r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

func appendEscaped(b []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(b, '\\', byte(r))
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
