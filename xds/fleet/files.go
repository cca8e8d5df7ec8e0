package fleet

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sluice-serve/sluice/xds"
)

// files are the topology and the PEM files it names, as they were read last and found
// good.
type files struct {
	path     string
	base     *xds.Topology
	text     []byte
	topology *xds.Topology
	secrets  xds.Secrets
}

func newFiles(path string, base *xds.Topology) *files {
	return &files{path: path, base: base, secrets: xds.Secrets{}}
}

// maxFile bounds a topology and a PEM file, in bytes.
const maxFile = 8 << 20

// read looks at the files and takes what has changed if all of it is good; otherwise
// nothing changes.
func (f *files) read() (changed bool, err error) {
	t := f.topology
	text := f.text
	if f.path != "" {
		if text, err = load(f.path); err != nil {
			return false, err
		}
		if t == nil || !bytes.Equal(text, f.text) {
			if t, err = xds.Decode(text); err != nil {
				return false, fmt.Errorf("%s: %w", f.path, err)
			}
			t = joined(t, f.base)
			changed = true
		}
	} else if t == nil {
		t, changed = f.base, true
	}
	if changed {
		if err := t.Validate(); err != nil {
			return false, fmt.Errorf("topology %s: %w", f.path, err)
		}
	}
	secrets := make(xds.Secrets, len(f.secrets))
	for _, name := range t.Files() {
		data, err := load(name)
		if err != nil {
			return false, err
		}
		secrets[name] = data
		changed = changed || !bytes.Equal(data, f.secrets[name])
	}
	if !changed {
		return false, nil
	}
	if err := check(t, secrets); err != nil {
		return false, err
	}
	f.topology, f.text, f.secrets = t, text, secrets
	return true, nil
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

func load(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d", name, info.Size(), maxFile)
	}
	return os.ReadFile(name)
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
