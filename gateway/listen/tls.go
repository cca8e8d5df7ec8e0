package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
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
	c.seen, c.looked = c.stamp(), c.now() // before the reading: what changes meanwhile is read again
	var err error
	if c.current, err = c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// lookEvery is how often, at most, a handshake looks at the files for news.
const lookEvery = time.Second

// Certificates is the configuration that the files of a TLS give. Files that change are
// read again at a handshake or a Look that follows; while they can't be read, or don't
// fit one another, the old ones stay in use. It has no goroutine.
type Certificates struct {
	files     TLS
	protocols []string
	tell      func(error)
	now       func() time.Time

	telling sync.Mutex // around tell; taken before mu

	mu      sync.Mutex
	current *tls.Config
	seen    stamps // what current was read from
	tried   stamps // what could not be read when it was looked at last
	told    stamps // what somebody heard of that it can't be read
	looked  time.Time
}

// stamps tell whether a file is another than it was: of the certificate, the key, the root.
type stamps [3]stamp

// stamp is of one file, behind all symbolic links; the zero value is of none.
type stamp struct {
	modified, changed int64 // Unix nanoseconds
	size              int64
	device, inode     uint64
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

func (c *Certificates) get() *tls.Config {
	c.mu.Lock()
	now := c.now()
	if now.Sub(c.looked) < lookEvery {
		defer c.mu.Unlock()
		return c.current
	}
	c.looked = now
	c.mu.Unlock()
	return c.look()
}

// look reads what is new. Only what failed twice in the same state is told of: files
// that are replaced one after the other don't fit one another in between.
func (c *Certificates) look() *tls.Config {
	c.telling.Lock()
	defer c.telling.Unlock()
	at := c.stamp()
	c.mu.Lock()
	if at == c.seen {
		c.tried = stamps{}
		defer c.mu.Unlock()
		return c.current
	}
	c.mu.Unlock()
	read, err := c.read()
	c.mu.Lock()
	news := false
	switch {
	case err == nil:
		c.current, c.seen, c.tried, c.told, news = read, at, stamps{}, stamps{}, true
	case at == c.tried && at != c.told:
		c.told, news = at, true
	}
	if err != nil {
		c.tried = at
	}
	current := c.current
	c.mu.Unlock()
	if news {
		c.tell(err)
	}
	return current
}

func (c *Certificates) stamp() (s stamps) {
	for i, name := range []string{c.files.Cert, c.files.Key, c.files.Root} {
		info, err := os.Stat(name)
		if err != nil {
			continue // reading it says why
		}
		s[i] = stamp{modified: info.ModTime().UnixNano(), size: info.Size()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s[i].changed, s[i].device, s[i].inode = st.Ctim.Nano(), st.Dev, st.Ino
		}
	}
	return s
}

func (c *Certificates) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: c.protocols}
	if c.files.Root == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(c.files.Root)
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
