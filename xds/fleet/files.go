package fleet

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile"
	"github.com/sluice-serve/sluice/xds"
)

// files are the topology and the PEM files it names, as they were read last and found
// good.
type files struct {
	path     string
	base     *xds.Topology
	follower *configfile.Follower[loaded]
	loaded
}

// loaded is one reading of all files.
type loaded struct {
	topology *xds.Topology
	secrets  xds.Secrets
}

// maxFile bounds a topology and a PEM file, in bytes.
const maxFile = 8 << 20

// openFiles reads the files for the first time.
func openFiles(path string, base *xds.Topology, now time.Time) (f *files, err error) {
	f = &files{path: path, base: base}
	f.follower, f.loaded, err = configfile.Open(maxFile, now, f.load)
	return f, err
}

// look looks at the files and takes what has changed once it is settled, if all of it is good; otherwise nothing
// changes. An error is given once.
func (f *files) look(now time.Time) (configfile.Result, error) {
	value, result, err := f.follower.Look(now)
	if result == configfile.Changed {
		f.loaded = value
	}
	return result, err
}

// load reads all files.
func (f *files) load(r *configfile.Reading) (l loaded, err error) {
	l.topology = f.base
	if f.path != "" {
		text, err := r.YAML(f.path, xds.EmptyList)
		if err != nil {
			return l, err
		}
		t, err := xds.Decode(text)
		if err != nil {
			return l, fmt.Errorf("%s: %w", f.path, err)
		}
		l.topology = joined(t, f.base)
	}
	if err := l.topology.Validate(); err != nil {
		return l, fmt.Errorf("topology %s: %w", f.path, err)
	}
	l.secrets = xds.Secrets{}
	for _, name := range l.topology.Files() {
		if l.secrets[name], err = r.File(name); err != nil {
			return l, err
		}
	}
	return l, check(l.topology, l.secrets)
}

// joined is a file's topology with the gateways of base: those of the same name fill
// each other's gaps.
func joined(t, base *xds.Topology) *xds.Topology {
	for _, g := range base.Gateways {
		found := false
		for i := range t.Gateways {
			if h := &t.Gateways[i]; h.Name == g.Name {
				found = true
				if h.HTTP == "" && h.GRPC == "" {
					h.HTTP, h.GRPC = g.HTTP, g.GRPC
				}
			}
		}
		if !found {
			t.Gateways = append(t.Gateways, g)
		}
	}
	if len(t.Listeners) == 0 {
		t.Listeners = base.Listeners
	}
	return t
}

// check says whether the PEM files fit together; while one of a pair is being replaced
// they do not.
func check(t *xds.Topology, secrets xds.Secrets) error {
	var errs []error
	pair := func(cert, key string) {
		if cert == "" {
			return
		}
		if _, err := tls.X509KeyPair(secrets[cert], secrets[key]); err != nil {
			errs = append(errs, fmt.Errorf("%s and %s: %w", cert, key, err))
		}
	}
	roots := func(file string) {
		if file != "" && !x509.NewCertPool().AppendCertsFromPEM(secrets[file]) {
			errs = append(errs, fmt.Errorf("%s has no certificate", file))
		}
	}
	for i := range t.Listeners {
		if s := t.Listeners[i].TLS; s != nil {
			pair(s.Cert, s.Key)
			roots(s.ClientCA)
		}
	}
	if c := t.Upstream.TLS; c != nil {
		pair(c.Cert, c.Key)
		roots(c.CA)
	}
	if name := t.Upstream.TokenFile; name != "" {
		if token := t.Token(secrets); token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			errs = append(errs, fmt.Errorf("%s is not a line with a token", name))
		}
	}
	return errors.Join(errs...)
}
