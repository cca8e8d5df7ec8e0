package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/infer"
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

// TestWhoseFaultIsAnErrorLine: callers must not be able to write error lines.
func TestWhoseFaultIsAnErrorLine(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string // the letter of the line at verbose level 1
	}{
		"a body that is no JSON":          {infer.CallerErrorf("failed to parse the request JSON buffer"), "V"},
		"too large for the library":       {status.Error(codes.ResourceExhausted, "grpc: message larger than max"), "V"},
		"left while it was answered":      {status.Error(codes.Unavailable, "transport is closing"), "V"},
		"left":                            {context.Canceled, "V"},
		"a full queue":                    {infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "full"), "V"},
		"a worker that is gone":           {infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "gone"), "E"},
		"a model that fails":              {infer.Errorf(infer.Internal, "onnx runtime error"), "E"},
		"a bug":                           {infer.Recovered("boom"), "E"},
		"an error that nobody has sorted": {errors.New("x"), "E"},
	} {
		var out bytes.Buffer
		s := logging.DefaultSettings()
		s.Verbose = 1
		g := &Gateway{logger: logging.New(&out, s).Logger()}
		g.logFailure(t.Context(), "/v2/models/m/infer", nil, c.err)
		if got := out.String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want a line that begins with %s", name, got, c.want)
		}
		out.Reset()
		g = &Gateway{logger: logging.New(&out, logging.DefaultSettings()).Logger()}
		g.logFailure(t.Context(), "/v2/models/m/infer", nil, c.err)
		if got := out.Len() > 0; got != (c.want == "E") {
			t.Errorf("%s: without verbose messages the log has %q", name, out.String())
		}
	}
}
