package listen

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile/configfiletest"
)

// twoCertificates are of the same key, so that each fits it.
func twoCertificates(t *testing.T) (first, other, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for serial, to := range []*[]byte{&first, &other} {
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(serial)), NotAfter: time.Unix(2e9, 0)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
		if err != nil {
			t.Fatal(err)
		}
		*to = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return first, other, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// lookedAt are certificates that are looked at each second until t ends.
func lookedAt(t *testing.T, files TLS) (*Certificates, func() []error) {
	t.Helper()
	var mu sync.Mutex
	var told []error
	c, err := files.Open(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	return c, func() []error {
		mu.Lock()
		defer mu.Unlock()
		return told
	}
}

func (c *Certificates) inForce() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func TestReloadOfCertificate(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		dir := t.TempDir()
		first, other, key := twoCertificates(t)
		files := TLS{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k")}
		put(t, files.Cert, first)
		put(t, files.Key, key)
		c, results := lookedAt(t, files)
		return configfiletest.Subject{File: files.Cert, First: string(first), Other: string(other), Comment: "# none\n",
			Results: results, State: func() string { return []string{"first", "other"}[serialOf(t, c.inForce())] }}
	})
}

// TestReloadOfRoots: a file of two roots, of which a part would shut out the clients of the second.
func TestReloadOfRoots(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		dir := t.TempDir()
		cert, more, key := twoCertificates(t)
		root, _ := made(t, 1)
		last, _ := made(t, 2)
		first, other := bytes.Join([][]byte{root, cert}, nil), bytes.Join([][]byte{last, more}, nil)
		files := TLS{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), Root: filepath.Join(dir, "r")}
		put(t, files.Cert, cert)
		put(t, files.Key, key)
		put(t, files.Root, first)
		c, results := lookedAt(t, files)
		return configfiletest.Subject{File: files.Root, First: string(first), Other: string(other), Comment: "# none\n",
			Results: results, State: func() string {
				for name, text := range map[string][]byte{"first": first, "other": other} {
					pool := x509.NewCertPool()
					pool.AppendCertsFromPEM(text)
					if pool.Equal(c.inForce().ClientCAs) {
						return name
					}
				}
				return "a part"
			}}
	})
}

func put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
