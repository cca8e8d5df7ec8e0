package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// TLS is a server certificate and how clients are checked. Names are of PEM files; an
// empty Cert is no TLS.
type TLS struct {
	Cert, Key string
	Root      string // of clients' certificates; clients are asked for one, and may have none
	Mutual    bool   // clients must show one that Root signed
}

// Validate says everything that is wrong with t at once, or nil.
func (t TLS) Validate() error {
	var errs []error
	if (t.Cert == "") != (t.Key == "") {
		errs = append(errs, errors.New("TLS needs a certificate and a key"))
	}
	if t.Mutual && (t.Root == "" || t.Cert == "") {
		errs = append(errs, errors.New("mutual TLS needs a certificate, a key and a root certificate"))
	}
	return errors.Join(errs...)
}

// lookEvery is how often, at most, the files are looked at for news.
const lookEvery = time.Second

// Config reads the files, for a server that speaks protocols (ALPN). Files that change
// are read again at a handshake that follows; while they can't be read the old ones
// stay in use.
func (t TLS) Config(protocols ...string) (*tls.Config, error) {
	r := &reloader{files: t, protocols: protocols, now: time.Now}
	stamp := r.stamp()
	c, err := r.read()
	if err != nil {
		return nil, err
	}
	r.current, r.seen, r.looked = c, stamp, r.now()
	outer := c.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.get(), nil }
	return outer, nil
}

// reloader keeps the configuration that the files give.
type reloader struct {
	files     TLS
	protocols []string
	now       func() time.Time

	mu      sync.Mutex
	current *tls.Config
	seen    [3]time.Time // modification times of what current was read from
	looked  time.Time
}

func (r *reloader) get() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now.Sub(r.looked) < lookEvery {
		return r.current
	}
	r.looked = now
	stamp := r.stamp()
	if stamp == r.seen {
		return r.current
	}
	if c, err := r.read(); err == nil { // half-written files are looked at again
		r.current, r.seen = c, stamp
	}
	return r.current
}

func (r *reloader) stamp() (s [3]time.Time) {
	for i, name := range []string{r.files.Cert, r.files.Key, r.files.Root} {
		if info, err := os.Stat(name); err == nil {
			s[i] = info.ModTime()
		}
	}
	return s
}

func (r *reloader) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(r.files.Cert, r.files.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: r.protocols}
	if r.files.Root == "" {
		return c, nil
	}
	pem, err := os.ReadFile(r.files.Root)
	if err != nil {
		return nil, fmt.Errorf("TLS root certificate: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("TLS root certificate: no certificate in %s", r.files.Root)
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven // who shows one is known by it
	if r.files.Mutual {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}
