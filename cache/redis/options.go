package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Config is --cache-config redis,….
// Source: the options of the original's redis cache; Budget, Prefix and TTL are ours.
type Config struct {
	Host, Port     string
	User, Password string
	DB             int
	ConnectTimeout time.Duration // 0: a second
	SocketTimeout  time.Duration // of fills; 0: a second
	PoolSize       int           // connections; 0: 16
	WaitTimeout    time.Duration // for a connection, within the budget; 0: 100 ms
	TLS            TLS

	Budget time.Duration // of one lookup; 0: 5 ms
	Prefix string        // of all keys
	TTL    time.Duration // of models that set none; 0: an hour
}

// TLS says how Redis is spoken to.
type TLS struct {
	Enabled           bool
	Cert, Key         string // PEM files of the client; "": none
	CACert, CACertDir string // PEM file, folder of such; "": the system's roots
	SNI               string // "": the host
}

// The defaults.
const (
	DefaultBudget = 5 * time.Millisecond
	DefaultTTL    = time.Hour
	DefaultPrefix = "sluice:"

	defaultPool    = 16
	defaultTimeout = time.Second
	defaultWait    = 100 * time.Millisecond // the original's
)

// Settings lists the names of the settings.
func Settings() []string {
	return []string{"host", "port", "user", "password", "db", "connect_timeout", "socket_timeout", "pool_size", "wait_timeout",
		"tls_enabled", "cert", "key", "cacert", "cacert_dir", "sni", "budget", "prefix", "ttl"}
}

// ParseConfig reads the settings of --cache-config. Times are milliseconds, ttl is as
// cache.ParseTTL has it. Its errors are InvalidArg.
func ParseConfig(settings map[string]string) (Config, error) {
	c := Config{Prefix: DefaultPrefix, TTL: DefaultTTL}
	p := parser{settings: settings}
	p.text("host", &c.Host)
	p.text("port", &c.Port)
	if c.Host == "" || c.Port == "" {
		// Source: the original's words.
		return c, infer.Errorf(infer.InvalidArg, "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify "+
			"'host' and 'port' in the configuration - e.g. --cache-config redis,host=redis --cache-config redis,port=6379")
	}
	p.text("user", &c.User)
	p.text("password", &c.Password)
	p.text("prefix", &c.Prefix)
	p.number("db", &c.DB, 0)
	p.number("pool_size", &c.PoolSize, 1)
	p.milliseconds("connect_timeout", &c.ConnectTimeout)
	p.milliseconds("socket_timeout", &c.SocketTimeout)
	p.milliseconds("wait_timeout", &c.WaitTimeout)
	p.milliseconds("budget", &c.Budget)
	t := &c.TLS
	p.text("cert", &t.Cert)
	p.text("key", &t.Key)
	p.text("cacert", &t.CACert)
	p.text("cacert_dir", &t.CACertDir)
	p.text("sni", &t.SNI)
	t.Enabled = *t != TLS{} // as in the original
	if v, ok := settings["tls_enabled"]; ok {
		on, err := strconv.ParseBool(v)
		p.fault(err != nil, "tls_enabled", v, "true or false")
		t.Enabled = t.Enabled || on
	}
	if v, ok := settings["ttl"]; ok {
		ttl, err := cache.ParseTTL(v)
		p.fault(err != nil || ttl < time.Millisecond, "ttl", v, "seconds greater than 0, or a duration like 1h30m")
		c.TTL = ttl
	}
	p.fault((t.Cert == "") != (t.Key == ""), "cert", t.Cert, "both, cert and key")
	return c, p.err
}

// parser reads settings and keeps the first fault.
type parser struct {
	settings map[string]string
	err      error
}

func (p *parser) fault(yes bool, name, value, want string) {
	if yes && p.err == nil {
		p.err = infer.Errorf(infer.InvalidArg, "Failed to initialize RedisCache: %s is '%s', want %s", name, value, want)
	}
}

func (p *parser) text(name string, into *string) {
	if v, ok := p.settings[name]; ok {
		*into = v
	}
}

func (p *parser) number(name string, into *int, least int) {
	v, ok := p.settings[name]
	if !ok {
		return
	}
	n, err := strconv.Atoi(v)
	p.fault(err != nil || n < least || n > 1<<20, name, v, fmt.Sprintf("a whole number from %d on", least))
	*into = n
}

func (p *parser) milliseconds(name string, into *time.Duration) {
	n := 0
	p.number(name, &n, 0)
	*into = time.Duration(n) * time.Millisecond
}

// withDefaults fills in what is 0.
func (c Config) withDefaults() Config {
	or := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	or(&c.ConnectTimeout, defaultTimeout)
	or(&c.SocketTimeout, defaultTimeout)
	or(&c.WaitTimeout, defaultWait)
	or(&c.Budget, DefaultBudget)
	or(&c.TTL, DefaultTTL)
	if c.PoolSize <= 0 {
		c.PoolSize = defaultPool
	}
	return c
}

func (c *Config) address() string { return net.JoinHostPort(c.Host, c.Port) }

// config reads the files; nil: plain text.
func (t *TLS) config(host string) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.SNI}
	if c.ServerName == "" {
		c.ServerName = host
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("Redis client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	files := []string{}
	if t.CACert != "" {
		files = append(files, t.CACert)
	}
	if t.CACertDir != "" {
		more, err := filepath.Glob(filepath.Join(t.CACertDir, "*"))
		if err != nil {
			return nil, fmt.Errorf("Redis roots: %w", err)
		}
		files = append(files, more...)
	}
	if len(files) == 0 {
		return c, nil
	}
	c.RootCAs = x509.NewCertPool()
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("Redis roots: %w", err)
		}
		if !c.RootCAs.AppendCertsFromPEM(pem) && f == t.CACert {
			return nil, fmt.Errorf("Redis roots: no certificate in %s", f)
		}
	}
	return c, nil
}
