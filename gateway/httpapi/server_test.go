package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/internal/variants"
)

// carrier is the transport of this run: every test of a server runs on each.
var carrier = variants.New(TransportOwn, TransportLibrary)

func TestMain(m *testing.M) { carrier.Main(m, func() error { return leak.Find() }) }

// start serves a fake on what c says and stops with the test.
func start(t *testing.T, f *fake, c Config) *Server {
	t.Helper()
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	c.Transport = carrier.Now(t)
	return startAPI(t, f, newFakeAPI(f, APIConfig{HeaderForward: "^x-fwd"}), c)
}

// startAPI is start with an API of the fake's.
func startAPI(t *testing.T, f *fake, a *API, c Config) *Server {
	t.Helper()
	s := NewServer(c, a, nil)
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.WithoutCancel(t.Context())) }() // which ends before Cleanup; Shutdown waits for handlers
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
		if f.held.Load() != 0 {
			t.Errorf("%d bytes of bodies are still held", f.held.Load())
		}
	})
	return s
}

// certificate writes a self-signed one for 127.0.0.1.
func certificate(t *testing.T) listen.TLS {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := listen.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: k}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func client(t *testing.T, change func(*http.Transport)) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	change(tr)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// TestTransports runs one large binary inference over every transport.
func TestTransports(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	plain := start(t, &fake{}, Config{Config: listen.Config{UnixSocket: socket, ReusePort: true}})
	files := certificate(t)
	secure := start(t, &fake{}, Config{TLS: files})
	insecure := &tls.Config{InsecureSkipVerify: true}
	var h1, h2 http.Protocols
	h1.SetHTTP1(true)
	h2.SetUnencryptedHTTP2(true)
	h2.SetHTTP2(true)
	for _, c := range []struct {
		name, url string
		proto     int
		change    func(*http.Transport)
	}{
		{"HTTP/1.1", "http://" + plain.Addrs()[0].String(), 1, func(tr *http.Transport) { tr.Protocols = &h1 }},
		{"h2c", "http://" + plain.Addrs()[0].String(), 2, func(tr *http.Transport) { tr.Protocols = &h2 }},
		{"TLS", "https://" + secure.Addrs()[0].String(), 1, func(tr *http.Transport) { tr.Protocols, tr.TLSClientConfig = &h1, insecure }},
		{"TLS h2", "https://" + secure.Addrs()[0].String(), 2, func(tr *http.Transport) { tr.Protocols, tr.TLSClientConfig = &h2, insecure }},
		{"Unix", "http://unix", 1, func(tr *http.Transport) {
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			}
		}},
	} {
		cl := client(t, c.change)
		for _, n := range []int{16, 1000, 200_000} {
			head, data := binaryRequest(n)
			for _, length := range []int64{int64(len(head) + len(data)), -1} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+"/v2/models/m/infer",
					io.MultiReader(strings.NewReader(head), bytes.NewReader(data)))
				if err != nil {
					t.Fatal(err)
				}
				req.ContentLength = length
				req.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
				resp, err := cl.Do(req)
				if err != nil {
					t.Fatal(c.name, err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				at, _ := strconv.Atoi(resp.Header.Get("Inference-Header-Content-Length"))
				if err != nil || resp.StatusCode != 200 || resp.ProtoMajor != c.proto || at == 0 || !bytes.Equal(body[at:], data) ||
					resp.ContentLength != int64(len(body)) || resp.Header.Get("Content-Type") != typeBinary {
					t.Errorf("%s, %d elements: %v %v %d bytes", c.name, n, err, resp, len(body))
				}
			}
		}
	}
}

// dial speaks raw HTTP/1.1.
func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func TestClientLeaves(t *testing.T) {
	entered, left := make(chan struct{}), make(chan error, 1)
	f := &fake{infer: func(ctx context.Context, _ *infer.Request, _ infer.SendFunc) error {
		close(entered)
		<-ctx.Done()
		left <- ctx.Err()
		return ctx.Err()
	}}
	s := start(t, f, Config{})
	c := dial(t, s)
	body := `{"inputs":[{"name":"I","shape":[1],"datatype":"FP32","data":[1]}]}`
	fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-entered
	_ = c.Close()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the request's context has not ended")
	}
}

// TestLongInferenceOutlivesTheBodyTimeout: the deadline for the body must not end the
// request that waits for its answer.
func TestLongInferenceOutlivesTheBodyTimeout(t *testing.T) {
	const timeout = 300 * time.Millisecond
	f := &fake{infer: func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * timeout):
			return send(identity(req))
		}
	}}
	s := start(t, f, Config{BodyTimeout: timeout})
	body := `{"inputs":[{"name":"I","shape":[1],"datatype":"FP32","data":[1]}]}`
	resp, err := client(t, func(*http.Transport) {}).Post("http://"+s.Addrs()[0].String()+"/v2/models/m/infer", "", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("got %s", resp.Status)
	}
}

func TestSlowClients(t *testing.T) {
	s := start(t, &fake{}, Config{BodyTimeout: 50 * time.Millisecond})
	c := dial(t, s)
	fmt.Fprint(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 400 || string(body) != `{"error":"the request body stopped arriving after 1 bytes"}` {
		t.Errorf("got %s %s", resp.Status, body)
	}
	c = dial(t, start(t, &fake{}, Config{ReadHeaderTimeout: 50 * time.Millisecond}))
	fmt.Fprint(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: ")
	if b, err := io.ReadAll(c); err != nil {
		t.Errorf("headers that stop: %q, %v", b, err)
	}
}

func TestShutdownDrains(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := &fake{infer: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		close(entered)
		<-release
		return send(identity(req))
	}}
	s := start(t, f, Config{})
	c := dial(t, s)
	body := `{"inputs":[{"name":"I","shape":[1],"datatype":"FP32","data":[1]}]}`
	fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context()) }()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var d net.Dialer
		probe, err := d.DialContext(t.Context(), "tcp", s.Addrs()[0].String())
		if err != nil {
			break // nothing is accepted any more
		}
		_ = probe.Close()
		if time.Now().After(deadline) {
			t.Fatal("connections are still accepted")
		}
	}
	close(release)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 || !resp.Close {
		t.Errorf("got %s, close %v", resp.Status, resp.Close)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestListenErrors(t *testing.T) {
	s := start(t, &fake{}, Config{})
	port := s.Addrs()[0].(*net.TCPAddr).Port
	for name, c := range map[string]Config{
		"port taken": {Config: listen.Config{Address: "127.0.0.1", Port: port}},
		"no cert":    {Config: listen.Config{Address: "127.0.0.1"}, TLS: listen.TLS{Cert: "/nonexistent/c", Key: "/nonexistent/k"}},
		"no folder":  {Config: listen.Config{Address: "127.0.0.1", UnixSocket: filepath.Join(t.TempDir(), "a", "b")}},
	} {
		if err := NewServer(c, newFakeAPI(&fake{}, APIConfig{}), nil).Listen(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestForwardedHeadersOverTheWire(t *testing.T) {
	s := start(t, &fake{}, Config{})
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.Addrs()[0].String()+"/v2/models/params/infer?x=1",
		strings.NewReader(`{"inputs":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["X-FWD-a_B"] = []string{"v"}
	resp, err := client(t, func(*http.Transport) {}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if !strings.Contains(string(body), `{\\\"x-fwd-a_b\\\":\\\"v\\\"}`) {
		t.Errorf("got %s", body)
	}
}
