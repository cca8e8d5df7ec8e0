package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile"
)

// made makes a self-signed certificate with a serial number, that may sign others.
func made(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, DNSNames: []string{"here"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// replace makes a file another one at once.
func replace(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
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

// watched is a Certificates with a clock of the test's, and what was told.
type watched struct {
	t *testing.T
	*Certificates
	at   time.Time
	told []error
}

func watch(t *testing.T, files TLS) *watched {
	t.Helper()
	w := &watched{t: t, at: time.Now()}
	var err error
	if w.Certificates, err = files.Open(func(err error) { w.told = append(w.told, err) }); err != nil {
		t.Fatal(err)
	}
	w.Certificates.now = func() time.Time { return w.at }
	return w
}

// glance looks once, and wants a certificate and how much was told.
func (w *watched) glance(name string, serial int64, told int) {
	w.t.Helper()
	w.at = w.at.Add(configfile.Period)
	if got := serialOf(w.t, w.get()); got != serial || len(w.told) != told {
		w.t.Errorf("%s: certificate %d, told %v; want %d and %d", name, got, w.told, serial, told)
	}
}

// step looks twice, after which files that stay as they are have settled.
func (w *watched) step(name string, serial int64, told int) {
	w.t.Helper()
	w.at = w.at.Add(configfile.Period)
	w.get()
	w.glance(name, serial, told)
}

func (w *watched) last() error { return w.told[len(w.told)-1] }

func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := TLS{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k")}
	write := func(serial int64) {
		cert, key := made(t, serial)
		replace(t, files.Cert, cert)
		replace(t, files.Key, key)
	}
	write(1)
	w := watch(t, files)
	w.step("as it was", 1, 0)
	write(2)
	if got := serialOf(t, w.get()); got != 1 {
		t.Errorf("at once: certificate %d", got)
	}
	w.glance("somebody may be writing", 1, 0)
	w.step("after it", 2, 1)
	if w.last() != nil {
		t.Error(w.last())
	}
	replace(t, files.Key, []byte("half"))
	w.glance("a broken key may be the first of two files", 2, 1)
	w.glance("it stays broken", 2, 2)
	if w.last() == nil {
		t.Error("told without an error")
	}
	w.step("it is told once", 2, 2)
	if err := os.Remove(files.Cert); err != nil {
		t.Fatal(err)
	}
	w.glance("no certificate", 2, 2)
	w.glance("there still is none", 2, 3)
	if !errors.Is(w.last(), os.ErrNotExist) {
		t.Error(w.last())
	}
	write(3)
	w.step("mended", 3, 4)
	if w.last() != nil {
		t.Error(w.last())
	}
}

// Kubernetes replaces the folder of a secret by a symbolic link to another one, whose
// files may have the same times and sizes.
func TestCertificatesBehindSymlinks(t *testing.T) {
	dir := t.TempDir()
	same := time.Unix(1e9, 0)
	for serial, name := range []string{"first", "second", "broken"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		cert, key := made(t, int64(serial)+1)
		if name == "broken" {
			cert, _ = made(t, 9) // of another key
		}
		for file, data := range map[string][]byte{"c": cert, "k": key} {
			at := filepath.Join(dir, name, file)
			replace(t, at, data)
			if err := os.Chtimes(at, same, same); err != nil {
				t.Fatal(err)
			}
		}
	}
	current := filepath.Join(dir, "current")
	swap := func(to string) {
		if err := os.Symlink(to, current+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(current+".new", current); err != nil {
			t.Fatal(err)
		}
	}
	swap("first")
	w := watch(t, TLS{Cert: filepath.Join(current, "c"), Key: filepath.Join(current, "k")})
	swap("second")
	w.step("swapped", 2, 1)
	swap("broken")
	w.glance("a key of another certificate", 2, 1)
	w.glance("and again", 2, 2)
	swap("first")
	w.step("swapped back", 1, 3)
}

// A client whose root is not trusted any more is refused, also when it resumes a session
// that began while it was; one of the new root is served.
func TestRootsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := TLS{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), Root: filepath.Join(dir, "r"), Mutual: true}
	cert, key := made(t, 1)
	replace(t, files.Cert, cert)
	replace(t, files.Key, key)
	oldRoot, oldKey := made(t, 2)
	newRoot, newKey := made(t, 3)
	replace(t, files.Root, oldRoot)
	w := watch(t, files)
	server := w.Config()
	client := func(cert, key []byte) *tls.Config {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, ServerName: "here", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	}
	before, after := client(oldRoot, oldKey), client(newRoot, newKey)
	for range 2 {
		if err := greet(t, server, before); err != nil {
			t.Fatal("before:", err)
		}
	}
	if greet(t, server, after) == nil {
		t.Error("a client of no root yet was served")
	}
	replace(t, files.Root, newRoot)
	w.step("another root", 1, 1)
	if greet(t, server, before) == nil {
		t.Error("a client of a root that is gone was served")
	}
	if err := greet(t, server, after); err != nil {
		t.Error("after:", err)
	}
}

// greet makes one connection over which the server says a word.
func greet(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		_, err = tls.Server(c, server).Write([]byte("word"))
		served <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 4))
	}
	return errors.Join(err, <-served)
}
