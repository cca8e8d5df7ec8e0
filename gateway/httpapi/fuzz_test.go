package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.conns <- b
	return a
}

// FuzzFraming sends raw bytes to the server: it must close or answer, never hang, crash
// or keep memory.
func FuzzFraming(f *testing.F) {
	fk := &fake{}
	s := NewServer(Config{Config: listen.Config{Port: -1}, BodyTimeout: time.Second, ReadHeaderTimeout: time.Second}, newFakeAPI(fk, APIConfig{}), nil)
	l := newPipes()
	s.Add(l)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- s.Serve(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			f.Error(err)
		}
	})
	for _, seed := range []string{
		"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{\"inputs\":[]}",
		"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"inputs\":[]}\r\n0\r\n\r\n",
		"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 0\r\nContent-Length: 4\r\n\r\nabcd",
		"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nabcd",
		"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"GET /v2/models/%zz HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := l.dial()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, c)
		}()
		_, _ = c.Write(raw)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // what comes without more input
		<-read
	})
}

// FuzzBody sends any JSON and binary part through the API and looks at what comes back.
func FuzzBody(f *testing.F) {
	head, data := binaryRequest(3)
	f.Add(head, data, len(head), false)
	f.Add(`{"id":"a","parameters":{"sequence_id":1,"x":[1]},"inputs":[{"data":[[1],2.5],"datatype":"FP64","shape":[2],"name":"I"}]}`, []byte{}, -1, false)
	f.Add(`{"inputs":[{"name":"I","shape":[2],"datatype":"BYTES","data":["a","\ud83d\ude00"]}],"outputs":[{"name":"O","parameters":{"classification":1}}]}`,
		[]byte{}, -1, true)
	f.Add("", []byte("abcd"), 0, true)
	f.Fuzz(func(t *testing.T, head string, data []byte, length int, chunked bool) {
		fk := &fake{}
		fk.limit = 1 << 26
		a := newFakeAPI(fk, APIConfig{Limits: Limits{MaxJSON: 1 << 16, MaxBody: 1 << 20}})
		h := header{}
		if length >= 0 {
			h["Inference-Header-Content-Length"] = fmt.Sprint(length)
		}
		n := int64(len(head) + len(data))
		if chunked {
			n = -1
		}
		got := stream(a, t.Context(), n, io.MultiReader(strings.NewReader(head), bytes.NewReader(data)), h)
		if held := fk.held.Load(); held != 0 {
			t.Fatalf("%d bytes are still held", held)
		}
		if got.status != 200 {
			var e struct{ Error string }
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || e.Error == "" {
				t.Fatalf("%d %q: %v", got.status, got.body, err)
			}
			return
		}
		if got.length > int64(len(got.body)) || !strings.HasPrefix(got.body, "{") {
			t.Fatalf("got %+v", got)
		}
	})
}

// FuzzPath: any path is answered, and no name that reaches the rest holds a slash or NUL.
func FuzzPath(f *testing.F) {
	for _, c := range errorCases {
		f.Add(c.path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		fk := &fake{open: func(_ context.Context, e *infer.Envelope) error {
			if strings.ContainsAny(e.Model, "/") || e.Model == ".." && !strings.Contains(path, "..") {
				t.Fatalf("%q gave the model %q", path, e.Model)
			}
			return errors.New("stop")
		}}
		if got := ask(t.Context(), newFakeAPI(fk, APIConfig{}), "GET", path, "", nil); got.status < 400 {
			t.Fatalf("%q: got %+v", path, got)
		}
	})
}
