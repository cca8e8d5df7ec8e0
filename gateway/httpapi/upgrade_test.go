package httpapi

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// upgraded is a connection that went over from HTTP/1.1 to HTTP/2.
type upgraded struct {
	t  *testing.T
	fr *http2.Framer
}

// dialUpgrade sends head, which asks for an upgrade, and body, and reads the 101.
func dialUpgrade(t *testing.T, address, head, body string) *upgraded {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	lines := "Host: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQAoAAA\r\n\r\n"
	if _, err := io.WriteString(nc, head+lines+body); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(nc)
	answer, err := http.ReadResponse(r, nil)
	if err != nil || answer.StatusCode != 101 || answer.Header.Get("Upgrade") != "h2c" {
		t.Fatalf("told %v, %v", answer, err)
	}
	u := &upgraded{t, http2.NewFramer(nc, r)}
	u.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	u.fr.SetMaxReadFrameSize(1 << 24)
	if _, err := io.WriteString(nc, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	u.must(u.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	return u
}

func (u *upgraded) must(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

// answer reads a stream's answer: its status and body. credit is what the server said of
// space on the connection meanwhile.
func (u *upgraded) answer(stream uint32) (status, body string, credit int) {
	u.t.Helper()
	for {
		f, err := u.fr.ReadFrame()
		u.must(err)
		ended := false
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			u.t.Fatalf("%v: %v %q", f, f.ErrCode, f.DebugData())
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream {
				status, ended = f.PseudoValue("status"), f.StreamEnded()
			}
		case *http2.DataFrame:
			if f.StreamID == stream {
				body += string(f.Data())
				ended = f.StreamEnded()
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				credit += int(f.Increment)
			}
		}
		if ended {
			return status, body, credit
		}
	}
}

// TestUpgrade sees requests that ask for HTTP/2 answered by it, and others after them.
func TestUpgrade(t *testing.T) {
	s := start(t, &fake{}, Config{})
	address := s.Addrs()[0].String()
	head, data := binaryRequest(10000)
	for name, c := range map[string]struct{ head, body string }{
		"GET": {"GET /v2 HTTP/1.1\r\n", ""},
		"POST": {fmt.Sprintf("POST /v2/models/m/infer HTTP/1.1\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n", len(head),
			len(head)+len(data)), head + string(data)},
	} {
		t.Run(name, func(t *testing.T) {
			u := dialUpgrade(t, address, c.head, c.body)
			status, body, credit := u.answer(1)
			if status != "200" || c.body != "" && !bytes.HasSuffix([]byte(body), data) {
				t.Errorf("status %s, %d bytes", status, len(body))
			}
			if most := 16<<20 - 65535; credit > most {
				t.Errorf("the client was told of %d bytes beyond the first, more than %d", credit, most)
			}
			var block bytes.Buffer
			enc := hpack.NewEncoder(&block)
			for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/v2/health/live"}, {":authority", "h"}} {
				u.must(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
			}
			u.must(u.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}))
			if status, _, _ := u.answer(3); status != "200" {
				t.Errorf("another request: status %s", status)
			}
		})
	}
}

// TestNoUpgrade sees that what can't be upgraded is answered as HTTP/1.1, and wrong
// settings are refused.
func TestNoUpgrade(t *testing.T) {
	s := start(t, &fake{}, Config{})
	upgrade := "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
	head, data := binaryRequest(20000)
	for name, c := range map[string]struct {
		sent string
		want int
	}{
		"without settings":     {"GET /v2 HTTP/1.1\r\nHost: h\r\n" + upgrade + "\r\n", 200},
		"settings twice":       {"GET /v2 HTTP/1.1\r\nHost: h\r\n" + upgrade + "HTTP2-Settings: AAQAoAAA\r\nHTTP2-Settings: AAQAoAAA\r\n\r\n", 200},
		"another protocol":     {"GET /v2 HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200},
		"wrong settings":       {"GET /v2 HTTP/1.1\r\nHost: h\r\n" + upgrade + "HTTP2-Settings: AAQAoA\r\n\r\n", 400},
		"settings of no value": {"GET /v2 HTTP/1.1\r\nHost: h\r\n" + upgrade + "HTTP2-Settings: AAIAAAAC\r\n\r\n", 400},
		"a large body": {fmt.Sprintf("POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n%sHTTP2-Settings: AAQAoAAA\r\nContent-Length: %d\r\n"+
			"Inference-Header-Content-Length: %d\r\n\r\n%s%s", upgrade, len(head)+len(data), len(head), head, data), 200},
		"a chunked body": {"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n" + upgrade + "HTTP2-Settings: AAQAoAAA\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"46\r\n" + `{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}]}`[:70] + "\r\n2\r\n]}\r\n0\r\n\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", s.Addrs()[0].String())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if _, err := io.WriteString(nc, c.sent); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if b, err := io.ReadAll(r.Body); r.StatusCode != c.want || r.ProtoMajor != 1 || err != nil {
				t.Errorf("got %s %.200s, %v", r.Status, b, err)
			}
		})
	}
}

// TestUpgradeStalls sees that a client which asks for an upgrade and goes silent is cut off.
func TestUpgradeStalls(t *testing.T) {
	s := start(t, &fake{}, Config{ReadHeaderTimeout: 100 * time.Millisecond})
	nc, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "GET /v2 HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAQAoAAA\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := nc.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(nc); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 101 ") {
		t.Errorf("read %q, %v", b, err)
	}
}
