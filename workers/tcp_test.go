package workers_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	a := &authority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der := must(x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key))(t)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue makes a certificate for loopback and its key, as PEM.
func (a *authority) issue(t testing.TB) (cert, key []byte) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "peer"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der := must(x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key))(t)
	keyDER := must(x509.MarshalECPrivateKey(k))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// listening is a worker in this process that serves TCP.
type listening struct {
	addr string
	stop context.CancelFunc
	done chan error
}

func startListening(t testing.TB, config workers.Config, deps workers.Deps) *listening {
	config.Listen = "127.0.0.1:0"
	deps.Log = logger(t)
	w := must(workers.New(config, deps))(t)
	c, cancel := context.WithCancel(t.Context())
	l := &listening{stop: cancel, done: make(chan error, 1)}
	addr := make(chan net.Addr, 1)
	go func() { l.done <- w.Run(c, func(a net.Addr) { addr <- a }) }()
	l.addr = (<-addr).String()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-l.done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the worker did not end")
		}
	})
	return l
}

func (l *listening) connect(t testing.TB, creds credentials.TransportCredentials) worker.WorkerClient {
	conn := must(grpc.NewClient(l.addr, grpc.WithTransportCredentials(creds)))(t)
	t.Cleanup(func() { conn.Close() })
	return worker.NewWorkerClient(conn)
}

func write(t testing.TB, data []byte) string {
	f := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(f, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTCPWantsCertificatesOfBothSides(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t)
	l := startListening(t, workers.Config{TLS: workers.TLS{Cert: write(t, cert), Key: write(t, key), CA: write(t, ours.pem)}},
		workers.Deps{Backends: identityOnly()})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.pem)
	pair := func(a *authority) []tls.Certificate {
		c, k := a.issue(t)
		return []tls.Certificate{must(tls.X509KeyPair(c, k))(t)}
	}
	for _, tc := range []struct {
		name  string
		creds credentials.TransportCredentials
		want  codes.Code
	}{
		{"no certificate", credentials.NewTLS(&tls.Config{RootCAs: roots}), codes.Unavailable},
		{"of another authority", credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: pair(others)}), codes.Unavailable},
		{"plain text", insecure.NewCredentials(), codes.Unavailable},
		{"as it should be", credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: pair(ours)}), codes.OK},
	} {
		_, err := l.connect(t, tc.creds).Hello(ctx(t), &worker.HelloRequest{Protocol: 2, Lane: []uint32{2}})
		wantCode(t, tc.name, err, tc.want)
	}
}

func TestTCPServesGatewaysApart(t *testing.T) {
	s := &scripted{}
	s.execute.Store(echo)
	l := startListening(t, workers.Config{Insecure: true}, scriptedDeps(s))
	var streams [2]*streamOf
	var conns [2]*grpc.ClientConn
	for i := range conns {
		conns[i] = must(grpc.NewClient(l.addr, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		t.Cleanup(func() { conns[i].Close() })
		client := worker.NewWorkerClient(conns[i])
		must(client.Hello(ctx(t), &worker.HelloRequest{Protocol: 2}))(t)
		must(client.Load(ctx(t), loadRequest(1, fp32Config(nil), 0)))(t)
		streams[i] = openStream(t, client)
	}
	for i, st := range streams {
		b, data := rowsBatch(uint64(i+1), 2, 4)
		b.Inputs[0].Segments = []wire.Segment{{Length: 32}}
		send(t, st, 1, b, data)
		if r, res := st.next(t); res.Err != "" || !bytes.Equal(bytes.Join(r.Tensors, nil), data) {
			t.Fatalf("gateway %d: %+v", i, res)
		}
	}
	conns[0].Close()
	until(t, "the first gateway's model is closed", func() bool { return s.closedModels() == 1 })
	b, data := rowsBatch(9, 2, 4)
	b.Inputs[0].Segments = []wire.Segment{{Length: 32}}
	send(t, streams[1], 1, b, data)
	if _, res := streams[1].next(t); res.ID != 9 || res.Err != "" {
		t.Fatalf("the other gateway: %+v", res)
	}
}

func TestTCPStopLetsBatchesFinish(t *testing.T) {
	s := &scripted{}
	release := make(chan struct{})
	s.execute.Store(func(b backend.Batch) error {
		<-release
		return echo(b)
	})
	l := startListening(t, workers.Config{Insecure: true}, scriptedDeps(s))
	client := l.connect(t, insecure.NewCredentials())
	must(client.Hello(ctx(t), &worker.HelloRequest{Protocol: 2}))(t)
	must(client.Load(ctx(t), loadRequest(1, fp32Config(nil), 0)))(t)
	watch := must(client.Watch(ctx(t), &worker.WatchRequest{}))(t)
	st := openStream(t, client)
	b, data := rowsBatch(1, 1, 4)
	b.Inputs[0].Segments = []wire.Segment{{Length: 16}}
	send(t, st, 1, b, data)
	must(watch.Recv())(t)
	until(t, "the batch is executing", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.entered > 0
	})
	l.stop()
	for {
		if _, err := watch.Recv(); err != nil {
			break
		}
	}
	close(release)
	if _, res := st.next(t); res.ID != 1 || res.Code != infer.Unknown && res.Err != "" {
		t.Fatalf("%+v", res)
	}
	if _, ok := <-st.results; ok {
		t.Error("the stream went on")
	}
	wantCode(t, "the stream's end", st.err, codes.Unavailable)
}

// until polls for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("timed out until %s", what)
		}
	}
}
