package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate writes a certificate that ends at a time, behind a block that is none.
func certificate(t *testing.T, file string, until time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "COMMENT", Bytes: []byte("x")})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateFigures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cert.pem")
	figures := certificateFigures(map[string]string{"http": file})
	read := func() (until float64) {
		figures(func(_, _ string, v float64, labels ...string) {
			if labels[1] != "http" {
				t.Errorf("labels %v", labels)
			}
			until = v
		}, nil)
		return until
	}
	if got := read(); got != 0 {
		t.Errorf("a file that is not there is valid until %v", got)
	}
	first := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	certificate(t, file, first)
	if got := read(); got != float64(first.Unix()) {
		t.Errorf("got %v, want %v", got, first.Unix())
	}
	certificate(t, file, first.Add(time.Hour)) // rotated
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != float64(first.Add(time.Hour).Unix()) {
		t.Errorf("after rotation: got %v", got)
	}
	if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != 0 {
		t.Errorf("rubbish is valid until %v", got)
	}
}
