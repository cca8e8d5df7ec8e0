package grpcapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/sluice-serve/sluice/gateway/listen"
)

// certificate writes a self-signed certificate for the loopback address, and its key.
func certificate(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, b []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write(name+".crt", "CERTIFICATE", der), write(name+".key", "PRIVATE KEY", keyDER)
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "server")
	clientCert, clientKey := certificate(t, dir, "client")
	roots := x509.NewCertPool()
	pemBytes, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(pemBytes)
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		mutual, showCert, want bool
	}{
		"server only": {false, false, true}, "mutual": {true, true, true}, "mutual without a certificate": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config, _ *rig) {
				c.TLS = listen.TLS{Cert: cert, Key: key}
				if test.mutual {
					c.TLS.Root, c.TLS.Mutual = clientCert, true
				}
			})
			cfg := &tls.Config{RootCAs: roots}
			if test.showCert {
				cfg.Certificates = []tls.Certificate{pair}
			}
			r.dial(t, r.server.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
			m := fp32Request(20_000)
			got, err := r.client.ModelInfer(t.Context(), m)
			if (err == nil) != test.want {
				t.Fatalf("got %v, want success %v", err, test.want)
			}
			if test.want {
				checkEcho(t, m, got)
			}
			r.settled(t)
		})
	}
}

func TestConfigFaultsComeTogether(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.Compression, cfg.MaxMessage, cfg.TLS = "much", 0, listen.TLS{Cert: "a", Mutual: true}
	err := cfg.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Fatalf("got %v", err)
	}
	cfg = DefaultConfig()
	cfg.Forward = "("
	if _, err := NewServer(t.Context(), cfg, Deps{}); err == nil {
		t.Fatal("a pattern that is none was taken")
	}
}

// encodings notes how a client's responses were compressed.
type encodings struct {
	mu  sync.Mutex
	got []string
}

func (*encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*encodings) HandleConn(context.Context, stats.ConnStats)                       {}
func (e *encodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok {
		e.mu.Lock()
		e.got = append(e.got, h.Compression)
		e.mu.Unlock()
	}
}

func TestCompression(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		for _, level := range []string{"none", "low"} {
			for _, encoding := range []string{"", "gzip", "deflate"} {
				r := start(t, codec, func(c *Config, _ *rig) { c.Compression = level })
				seen := &encodings{}
				r.dial(t, r.server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(seen))
				var options []grpc.CallOption
				if encoding != "" {
					options = append(options, grpc.UseCompressor(encoding))
				}
				for range 2 { // the second meets pooled compressors
					m := fp32Request(50_000)
					got, err := r.client.ModelInfer(t.Context(), m, options...)
					if err != nil {
						t.Fatalf("level %s, request %q: %v", level, encoding, err)
					}
					checkEcho(t, m, got)
				}
				for _, got := range seen.got {
					if compressed := got != "" && got != "identity"; compressed != (level != "none") {
						t.Errorf("level %s, request %q: answered in %q", level, encoding, got)
					}
				}
				r.settled(t)
			}
		}
	})
}

// A stream's answers are compressed as unary ones are, whatever its requests were.
func TestStreamCompression(t *testing.T) {
	for _, level := range []string{"none", "high"} {
		for _, encoding := range []string{"", "gzip", "deflate"} {
			r := start(t, func(c *Config, _ *rig) { c.Compression = level })
			seen := &encodings{}
			r.dial(t, r.server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(seen))
			var options []grpc.CallOption
			if encoding != "" {
				options = append(options, grpc.UseCompressor(encoding))
			}
			stream, err := r.client.ModelStreamInfer(t.Context(), options...)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				m := fp32Request(50_000)
				ask(t, stream, m)
				got, err := stream.Recv()
				if err != nil || got.ErrorMessage != "" {
					t.Fatalf("level %s, requests %q: %v %s", level, encoding, err, got.GetErrorMessage())
				}
				checkEcho(t, m, got.InferResponse)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != io.EOF {
				t.Errorf("the end: %v", err)
			}
			for _, got := range seen.got {
				if compressed := got != "" && got != "identity"; compressed != (level != "none") {
					t.Errorf("level %s, requests %q: answered in %q", level, encoding, got)
				}
			}
			r.settled(t)
		}
	}
}

func TestUnknownCompression(t *testing.T) {
	r := start(t)
	_, err := r.client.ModelInfer(t.Context(), fp32Request(1), grpc.UseCompressor("snappy"))
	if err == nil {
		t.Fatal("an unknown encoding was taken")
	}
}

func BenchmarkServer(b *testing.B) {
	for name, n := range map[string]int{"64B": 16, "600KB": 150_000} {
		for _, standard := range []bool{false, true} {
			codec := "hand"
			if standard {
				codec = "generated"
			}
			b.Run(name+"/"+codec, func(b *testing.B) { benchServer(b, n, standard) })
		}
	}
}

func TestReusePort(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.ReusePort = true })
	port := r.server.Addr().(*net.TCPAddr).Port
	second := start(t, func(c *Config, _ *rig) { c.ReusePort, c.Port = true, port })
	if got := second.server.Addr().(*net.TCPAddr).Port; got != port {
		t.Fatalf("the second server listens on %d, want %d", got, port)
	}
	cfg := DefaultConfig()
	cfg.Address, cfg.Port = "127.0.0.1", port
	if _, err := NewServer(t.Context(), cfg, Deps{}); err == nil {
		t.Fatal("a port in use was taken without ReusePort")
	}
}

func TestMaxConnections(t *testing.T) {
	r := start(t, func(c *Config, _ *rig) { c.MaxConnections = 1 })
	if _, err := r.client.ModelInfer(t.Context(), fp32Request(1)); err != nil {
		t.Fatal(err)
	}
	first := r.conn
	r.dial(t, r.server.Addr().String())
	waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.client.ModelInfer(waiting, fp32Request(1)); err == nil {
		t.Fatal("a second connection was served")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.ModelInfer(t.Context(), fp32Request(1), grpc.WaitForReady(true)); err != nil {
		t.Fatalf("after the first one closed: %v", err)
	}
}
