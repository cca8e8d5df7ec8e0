package listen

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile"
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

// Config is Open's configuration, for who has nothing to say of later readings.
func (t TLS) Config(protocols ...string) (*tls.Config, error) {
	c, err := t.Open(nil, protocols...)
	if err != nil {
		return nil, err
	}
	return c.Config(), nil
}

// Open reads the files, for a server that speaks protocols (ALPN). tell (nil: nobody)
// hears of each later reading, with an error of one that failed; it is called by the
// goroutines of handshakes and of Look, one at a time.
func (t TLS) Open(tell func(err error), protocols ...string) (*Certificates, error) {
	if tell == nil {
		tell = func(error) {}
	}
	c := &Certificates{files: t, protocols: protocols, tell: tell, now: time.Now}
	now := c.now()
	follower, current, err := configfile.Open(maxPEM, now, c.read)
	if err != nil {
		return nil, err
	}
	c.follower, c.current, c.looked = follower, current, now
	return c, nil
}

// lookEvery is how often, at most, a handshake looks at the files for news.
const lookEvery = configfile.Period / 2

// maxPEM bounds a file, in bytes.
const maxPEM = 8 << 20

// Certificates is the configuration that the files of a TLS give. Files that change are
// read again at a handshake or a Look that follows, once a later one finds them settled
// (see configfile); while they can't be read, or don't fit one another, the old ones stay
// in use. It has no goroutine: where handshakes are rare, somebody has to call Look.
type Certificates struct {
	files     TLS
	protocols []string
	tell      func(error)
	now       func() time.Time

	looking  sync.Mutex // around a look and tell; taken before mu
	follower *configfile.Follower[*tls.Config]

	mu      sync.Mutex
	current *tls.Config
	looked  time.Time
}

// Config is the configuration of a server whose handshakes follow the files.
func (c *Certificates) Config() *tls.Config {
	c.mu.Lock()
	outer := c.current.Clone()
	c.mu.Unlock()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.get(), nil }
	return outer
}

// Look reads the files again if they changed, as a handshake does.
func (c *Certificates) Look() { c.get() }

// Run calls Look in turn until ctx ends.
func (c *Certificates) Run(ctx context.Context) {
	tick := time.NewTicker(configfile.Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.Look()
		}
	}
}

func (c *Certificates) get() *tls.Config {
	c.mu.Lock()
	now := c.now()
	if now.Sub(c.looked) < lookEvery {
		defer c.mu.Unlock()
		return c.current
	}
	c.looked = now
	c.mu.Unlock()
	c.look(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// look reads what is new.
func (c *Certificates) look(now time.Time) {
	c.looking.Lock()
	defer c.looking.Unlock()
	read, result, err := c.follower.Look(now)
	if result == configfile.Unchanged {
		return
	}
	if result == configfile.Changed {
		c.mu.Lock()
		c.current = read
		c.mu.Unlock()
	}
	c.tell(err)
}

func (c *Certificates) read(r *configfile.Reading) (*tls.Config, error) {
	cert, certErr := r.File(c.files.Cert)
	key, keyErr := r.File(c.files.Key)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: c.protocols}
	if c.files.Root == "" {
		return conf, nil
	}
	pem, err := r.File(c.files.Root)
	if err != nil {
		return nil, fmt.Errorf("TLS root certificate: %w", err)
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("TLS root certificate: no certificate in %s", c.files.Root)
	}
	conf.ClientAuth = tls.VerifyClientCertIfGiven // who shows one is known by it
	if c.files.Mutual {
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}
