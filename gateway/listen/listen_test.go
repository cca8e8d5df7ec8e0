package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestUnixSocketFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Port: -1, UnixSocket: file}); err == nil {
		t.Error("a plain file was replaced")
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Port: -1, UnixSocket: dead}); err == nil {
		t.Error("a living server's socket was replaced")
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), Config{Port: -1, UnixSocket: dead})
	if err != nil {
		t.Fatal("a dead server's socket was not replaced:", err)
	}
	if err := again[0].Close(); err != nil {
		t.Error(err)
	}
}

// What was opened before a failure must not stay open.
func TestNothingStaysOpen(t *testing.T) {
	first, err := Open(t.Context(), Config{Address: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	port := first[0].Addr().(*net.TCPAddr).Port
	if _, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port}); err == nil {
		t.Error("a taken port was opened")
	}
	if err := first[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port, UnixSocket: filepath.Join(t.TempDir(), "a", "b")}); err == nil {
		t.Fatal("a socket in no folder was opened")
	}
	again, err := Open(t.Context(), Config{Address: "127.0.0.1", Port: port})
	if err != nil {
		t.Fatal("the port stayed open:", err)
	}
	if err := again[0].Close(); err != nil {
		t.Error(err)
	}
}

// write makes a self-signed certificate with a serial number.
func write(t *testing.T, files TLS, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: k}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, time.Time{}, time.Unix(1e9+serial, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

func serialOf(t *testing.T, c *tls.Config) int64 {
	t.Helper()
	leaf, err := x509.ParseCertificate(c.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.SerialNumber.Int64()
}

func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := TLS{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k")}
	write(t, files, 1)
	now := time.Now()
	r := &reloader{files: files, now: func() time.Time { return now }}
	var err error
	if r.current, err = r.read(); err != nil {
		t.Fatal(err)
	}
	r.seen, r.looked = r.stamp(), now
	step := func(name string, want int64) {
		t.Helper()
		if got := serialOf(t, r.get()); got != want {
			t.Errorf("%s: certificate %d, want %d", name, got, want)
		}
	}
	write(t, files, 2)
	step("within a second", 1)
	now = now.Add(2 * lookEvery)
	step("after it", 2)
	if err := os.WriteFile(files.Key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * lookEvery)
	step("a broken key", 2)
	write(t, files, 3)
	now = now.Add(2 * lookEvery)
	step("mended", 3)
}

func TestTLSFaults(t *testing.T) {
	for name, files := range map[string]TLS{"no key": {Cert: "c"}, "mutual without roots": {Cert: "c", Key: "k", Mutual: true}} {
		if err := files.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := (TLS{Cert: "/nonexistent/c", Key: "/nonexistent/k"}).Config(); err == nil {
		t.Error("files that are not there: no error")
	}
}
