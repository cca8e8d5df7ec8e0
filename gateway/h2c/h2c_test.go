package h2c

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// encoded is a good HTTP2-Settings: MAX_CONCURRENT_STREAMS 100, INITIAL_WINDOW_SIZE 10485760.
const encoded = "AAMAAABkAAQAoAAA"

// ask is a request for an upgrade with more lines, or with lines in place of its own.
func ask(lines ...string) string {
	head := []string{"GET /a%20b?c HTTP/1.1", "Host: h:1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: " + encoded}
	for _, l := range lines {
		name, _, _ := strings.Cut(l, ":")
		replaced := false
		for i, had := range head {
			if strings.HasPrefix(had, name+":") {
				head[i], replaced = l, true
			}
		}
		if !replaced {
			head = append(head, l)
		}
	}
	return strings.Join(head, "\r\n") + "\r\n\r\n"
}

// patience is how long a server waits for what comes.
const patience = 20 * time.Second

// talk lets Accept read what client sends, in pieces of so many bytes, and for so long when
// it has read all of it, and gives the opening with what the client was told.
func talk(t *testing.T, pieces int, sent string, wait time.Duration) (Opening, string, error) {
	t.Helper()
	client, server := net.Pipe()
	told := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(client) // the pipe's end alone ends it
		told <- string(b)
	}()
	go func() {
		defer client.SetReadDeadline(time.Now().Add(30 * time.Second))
		for s := sent; s != ""; s = s[min(pieces, len(s)):] {
			if _, err := io.WriteString(client, s[:min(pieces, len(s))]); err != nil {
				return
			}
		}
		_ = server.SetDeadline(time.Now().Add(wait)) // fails where Accept has returned
	}()
	if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	o, err := Accept(server, nil, 4<<10)
	_ = server.Close()
	return o, <-told, err
}

const (
	clientSettings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x02\x00\x00\x00\x00"
	ping           = "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"
)

func TestAccept(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		want       Outcome
		told       string
	}{
		{"an upgrade", ask() + Preface + clientSettings, Upgraded, switching},
		{"with a body", ask("Content-Length: 3") + "abc" + Preface + clientSettings, Upgraded, switching},
		{"that waits for 100", ask("Content-Length: 3", "Expect: 100-continue") + "abc" + Preface + clientSettings, Upgraded, ""},
		{"tokens in any case", ask("Connection: hTTP2-settings ,\tUPGRADE", "Upgrade: websocket, H2C") + Preface + clientSettings, Upgraded, switching},
		{"a reserved bit", ask() + Preface + strings.Replace(clientSettings, "\x04\x00\x00", "\x04\x00\x80", 1), Upgraded, switching},
		{"no preface", ask() + strings.Repeat("x", 40), Upgraded, switching}, // the server says what is wrong
		{"no upgrade", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", Unchanged, ""},
		{"by prior knowledge", Preface + clientSettings, Unchanged, ""},
		{"HTTP/1.0", "GET / HTTP/1.0\r\n", Unchanged, ""},
		{"no method", "\x16\x03\x01", Unchanged, ""},
		{"another protocol", ask("Upgrade: websocket"), Unchanged, ""},
		{"h2 is for TLS", ask("Upgrade: h2"), Unchanged, ""},
		{"settings that are not named in Connection", ask("Connection: Upgrade"), Unchanged, ""},
		{"no Upgrade in Connection", ask("Connection: HTTP2-Settings"), Unchanged, ""},
		{"settings twice", ask()[:len(ask())-2] + "HTTP2-Settings: " + encoded + "\r\n\r\n", Unchanged, ""},
		{"hosts twice", ask()[:len(ask())-2] + "Host: h\r\n\r\n", Unchanged, ""},
		{"chunked", ask("Transfer-Encoding: chunked"), Unchanged, ""},
		{"a body above the bound", ask("Content-Length: 65536"), Unchanged, ""},
		{"two lengths", ask("Content-Length: 3")[:len(ask("Content-Length: 3"))-2] + "Content-Length: 3\r\n\r\n", Unchanged, ""},
		{"another expectation", ask("Expect: x"), Unchanged, ""},
		{"by a proxy, for somebody", ask("x-forwarded-FOR: 192.0.2.1"), Unchanged, ""},
		{"by a proxy, with a certificate", ask("X-Forwarded-Client-Cert: By=x"), Unchanged, ""},
		{"by a proxy that says so", ask("Via: 1.1 p"), Unchanged, ""},
		{"forwarded", ask("Forwarded: for=192.0.2.1"), Unchanged, ""},
		{"by nginx", ask("X-Real-IP: 192.0.2.1"), Unchanged, ""},
		{"by Envoy", ask("x-envoy-expected-rq-timeout-ms: 15000"), Unchanged, ""},
		{"a control character", ask("X: a\x01b"), Unchanged, ""},
		{"a line without CR", "GET / HTTP/1.1\r\nHost: h\n", Unchanged, ""},
		{"a line without a name", "GET / HTTP/1.1\r\nUpgrade\r\n", Unchanged, ""},
		{"a head above the limit", ask("X: " + strings.Repeat("x", 5<<10)), Unchanged, ""},
		{"a target that is no path", strings.Replace(ask(), "/a%20b", "http://x/", 1), Unchanged, ""},
		{"settings of no base64", ask("HTTP2-Settings: a+b/"), Refused, "base64url"},
		{"padded", ask("HTTP2-Settings: AAMAAABkAAQAoAAAAAA="), Refused, "base64url"},
		{"settings of five bytes", ask("HTTP2-Settings: AAMAAAA"), Refused, "not a list"},
		{"a window over 2^31-1", ask("HTTP2-Settings: AASAAAAA"), Refused, "out of range"},
		{"a push that is not 0 or 1", ask("HTTP2-Settings: AAIAAAAC"), Refused, "out of range"},
		{"frames too small", ask("HTTP2-Settings: AAUAAAAB"), Refused, "out of range"},
		{"too many settings", ask("HTTP2-Settings: " + strings.Repeat("AAMAAABk", 33)), Refused, "too many"},
	} {
		for _, pieces := range []int{1 << 20, 1} {
			o, told, err := talk(t, pieces, c.sent, patience)
			if err != nil || o.Outcome != c.want || !strings.Contains(told, c.told) || (o.Outcome == Unchanged && told != "") {
				t.Errorf("%s, by %d bytes: got %v, %v, told %q", c.name, pieces, o.Outcome, err, told)
			}
			if c.name == "a reserved bit" && !bytes.Contains(o.Bytes, []byte("/a%20b?c")) {
				t.Errorf("%s: the request is lost: %q", c.name, o.Bytes)
			}
			if o.Outcome == Unchanged && !strings.HasPrefix(c.sent, string(o.Bytes)) {
				t.Errorf("%s: gave %q", c.name, o.Bytes)
			}
			if c.want == Refused && !strings.HasPrefix(told, "HTTP/1.1 400 Bad Request\r\n") {
				t.Errorf("%s: told %q", c.name, told)
			}
		}
	}
}

// TestBytes reads what a server would.
func TestBytes(t *testing.T) {
	long, body := strings.Repeat("v", 3000), strings.Repeat("b", 40000)
	sent := ask("Content-Length: 40000", "TE: gzip, trailers", "X-Long: "+long, "Keep-Alive: 5", "Connection: Upgrade, HTTP2-Settings, x-hop",
		"X-Hop: 1", "Expect: 100-continue") + body + Preface + clientSettings + ping
	o, told, err := talk(t, 1000, sent, patience)
	if err != nil || o.Outcome != Upgraded || o.Body != len(body) {
		t.Fatal(o.Outcome, o.Body, err)
	}
	if told != goOn+switching {
		t.Errorf("told %q", told)
	}
	rest, ok := bytes.CutPrefix(o.Bytes, []byte(Preface))
	if !ok {
		t.Fatalf("it begins with %q", o.Bytes[:30])
	}
	fr := http2.NewFramer(nil, bytes.NewReader(rest))
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	next := func() http2.Frame {
		t.Helper()
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	s, ok := next().(*http2.SettingsFrame)
	if !ok || s.NumSettings() != 3 || s.Setting(0) != (http2.Setting{ID: 3, Val: 100}) || s.Setting(2) != (http2.Setting{ID: 2}) {
		t.Fatal("settings:", s)
	}
	h, ok := next().(*http2.MetaHeadersFrame)
	if !ok || h.StreamID != 1 || h.StreamEnded() {
		t.Fatal("headers:", h)
	}
	var got []string
	for _, f := range h.Fields {
		got = append(got, f.Name+"="+f.Value)
	}
	want := ":method=GET :scheme=http :path=/a%20b?c :authority=h:1 content-length=40000 te=trailers x-long=" + long
	if g := strings.Join(got, " "); g != want {
		t.Errorf("got  %s\nwant %s", g, want)
	}
	var data []byte
	for ended := false; !ended; {
		d, ok := next().(*http2.DataFrame)
		if !ok || d.Length > maxFrame {
			t.Fatal("data:", d)
		}
		data, ended = append(data, d.Data()...), d.StreamEnded()
	}
	if string(data) != body {
		t.Errorf("a body of %d bytes", len(data))
	}
	if p, ok := next().(*http2.PingFrame); !ok || string(p.Data[:]) != "12345678" {
		t.Error("what the client sent then:", p)
	}
}

// TestLongHead sees a block that does not fit a frame.
func TestLongHead(t *testing.T) {
	r := &request{method: "GET", target: "/", host: "h", fields: []field{{"x", strings.Repeat("v", 40000)}}}
	fr := http2.NewFramer(nil, bytes.NewReader(r.appendFrames(nil, nil)))
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f, err := fr.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if h, ok := f.(*http2.MetaHeadersFrame); !ok || !h.StreamEnded() || len(h.Fields) != 5 {
		t.Errorf("got %v", f)
	}
}

// TestSlowClient sees that a client which stops does not hold the server.
func TestSlowClient(t *testing.T) {
	for _, sent := range []string{"GET / HT", ask()[:60], ask("Content-Length: 3") + "ab", ask(), ask() + Preface, ask() + Preface + clientSettings[:12]} {
		o, _, err := talk(t, 1<<20, sent, 0)
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%q: got %v", sent, err)
		}
		if o.Outcome == Unchanged && string(o.Bytes) != sent {
			t.Errorf("%q: gave %q", sent, o.Bytes)
		}
	}
}

// TestCloseWrite sees that a connection which can't close one direction stays open: what
// is closed with bytes that were not read is reset, and the answer lost.
func TestCloseWrite(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	c := &conn{Conn: struct{ net.Conn }{server}}
	if err := c.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if err := server.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); errors.Is(err, io.ErrClosedPipe) {
		t.Error("it was closed")
	}
}

// TestCredit sees that the first window update is less by what was owed, however it is
// written, and that nothing else changes.
func TestCredit(t *testing.T) {
	frames := func(update uint32) []byte {
		var b bytes.Buffer
		fr := http2.NewFramer(&b, nil)
		for _, err := range []error{fr.WriteSettings(http2.Setting{ID: 3, Val: 100}), fr.WriteWindowUpdate(1, 70000), fr.WriteWindowUpdate(0, update), fr.WriteWindowUpdate(0, 1<<20)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	in, want := frames(1<<20), frames(1<<20-50000)
	c := credit{owed: 50000}
	given := bytes.Clone(in)
	if got := c.take(given); !bytes.Equal(got, want) || !bytes.Equal(given, in) || c.owed != 0 {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	c = credit{owed: 50000} // too little to take it off; the second is not
	if got := c.take(frames(100)); bytes.Equal(got, frames(100)) || c.owed != 0 {
		t.Errorf("got %x", got)
	}
	c = credit{owed: 50000}
	var got []byte
	for i := 0; i < len(in); i += 15 { // the update's number is in one piece
		got = append(got, c.take(in[i:min(i+15, len(in))])...)
	}
	if c.owed != 0 || bytes.Equal(got, in) || len(got) != len(in) {
		t.Errorf("in pieces: %x, %d still owed", got, c.owed)
	}
}

// FuzzAccept sees that a start that is no upgrade comes back as it was sent, and that an
// upgraded one is HTTP/2.
func FuzzAccept(f *testing.F) {
	f.Add([]byte(ask("Content-Length: 3") + "abc" + Preface + clientSettings + ping))
	f.Add([]byte(ask("HTTP2-Settings: AAUAAAAB")))
	f.Add([]byte("GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		from := bytes.NewReader(sent)
		var told bytes.Buffer
		o, err := Accept(&memory{from: from, to: &told}, nil, 1<<10)
		switch {
		case o.Outcome == Unchanged:
			rest := sent[len(sent)-from.Len():]
			if told.Len() > 0 || !bytes.Equal(append(o.Bytes, rest...), sent) {
				t.Fatalf("%q: gave %q, told %q", sent, o.Bytes, told.Bytes())
			}
		case err != nil || o.Outcome == Refused:
		case bytes.Contains(sent, o.Bytes): // its settings are none: the server says so
		case bytes.HasPrefix(o.Bytes, []byte(Preface)):
			fr := http2.NewFramer(nil, bytes.NewReader(o.Bytes[len(Preface):]))
			if f, err := fr.ReadFrame(); err != nil || f.Header().Type != http2.FrameSettings {
				t.Fatalf("%q: the first frame is %v, %v", sent, f, err)
			}
		}
	})
}

// memory is a connection of which both directions lie in memory.
type memory struct {
	net.Conn
	from io.Reader
	to   io.Writer
}

func (m *memory) Read(p []byte) (int, error)  { return m.from.Read(p) }
func (m *memory) Write(p []byte) (int, error) { return m.to.Write(p) }

// TestEncoded holds the test's own settings.
func TestEncoded(t *testing.T) {
	if b, err := base64.RawURLEncoding.DecodeString(encoded); err != nil || len(b) != 12 {
		t.Fatal(b, err)
	}
}

func TestMerge(t *testing.T) {
	early := "\x00\x04\x00\x00\x00\x01" + "\x00\x03\x00\x00\x00\x02" + "\x00\x05\x00\x00\x00\x03" + "\x00\x05\x00\x00\x00\x04"
	others := "\x00\x04\x00\x00\x00\x05" + "\x00\x06\x00\x00\x00\x06"
	want := "\x00\x03\x00\x00\x00\x02" + "\x00\x05\x00\x00\x00\x04" + others
	if got := merge([]byte(early), []byte(others)); string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
