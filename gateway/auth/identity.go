package auth

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// identity says how callers are known; the zero value knows nobody.
type identity struct {
	on        bool // callers are asked for
	keys      keys
	issuers   []*issuer
	certNames []string // kinds of names of certificates, in their order; nil: they prove nothing
	trusted   peers
	signing   []byte // of ProofHeader; nil: it is not read
	assigned  []assignment
}

// assignment gives tenant and groups to callers whose proof has none.
type assignment struct {
	names  []glob
	tenant string
	groups []string
}

// assign completes a principal that was made for it alone.
func (id *identity) assign(p *infer.Principal) *infer.Principal {
	for i := range id.assigned {
		a := &id.assigned[i]
		if !anyMatch(a.names, p.Name) {
			continue
		}
		if p.Tenant == "" {
			p.Tenant = a.tenant
		}
		for _, g := range a.groups {
			if !slices.Contains(p.Groups, g) {
				p.Groups = append(slices.Clip(p.Groups), g)
			}
		}
	}
	return p
}

// loading is one reading of all files.
type loading struct {
	files   *configfile.Reading
	log     *slog.Logger
	fresh   func()
	sources map[sourceID]*source // those that there are, and then also the new ones
	used    map[sourceID]*source // those that this reading names
	state   *state               // once all files were read, and are good
}

func (l *loading) source(id sourceID) (*source, error) {
	s := l.sources[id]
	if s == nil {
		var err error
		if s, err = newSource(id, l.log, l.fresh); err != nil {
			return nil, err
		}
		l.sources[id] = s
	}
	l.used[id] = s
	return s, nil
}

// identity reads the identity file, "" is none, and the keys' one.
func (l *loading) identity(file, keyFile string) (*identity, error) {
	id := &identity{}
	if file != "" {
		data, err := l.files.YAML(file, "tokens")
		if err != nil {
			return nil, err
		}
		f := &faults{file: file}
		if doc := f.document(data); doc != nil {
			l.document(f, doc, id, &keyFile)
		}
		if err := f.err(); err != nil {
			return nil, err
		}
		id.on = true
	}
	if keyFile == "" {
		return id, nil
	}
	data, err := l.files.Text(keyFile)
	if err != nil {
		return nil, err
	}
	if id.keys, err = parseKeys(keyFile, data); err != nil {
		return nil, err
	}
	id.on = true
	for _, list := range id.keys {
		for _, k := range list {
			id.assign(k.principal)
		}
	}
	return id, nil
}

func (l *loading) document(f *faults, doc *yaml.Node, id *identity, keyFile *string) {
	f.mapping(doc, "the identity file",
		field{"api-keys", func(n *yaml.Node) {
			if *keyFile != "" {
				f.at(n, "the file of API keys is given by --api-keys already")
			}
			if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == "" {
				return // the words for no file of keys
			}
			*keyFile = beside(f.file, f.text(n, "'api-keys'"))
		}},
		field{"tokens", func(n *yaml.Node) {
			f.list(n, "'tokens'", func(e *yaml.Node) { l.issuer(f, e, id) })
		}},
		field{"certificates", func(n *yaml.Node) {
			f.mapping(n, "'certificates'", f.textsInto("names", &id.certNames))
			for _, kind := range id.certNames {
				if kind != nameSPIFFE && kind != nameDNS && kind != nameCN {
					f.at(n, "'%s' is not one of spiffe, dns, cn", clean(kind))
				}
			}
		}},
		field{"proxies", func(n *yaml.Node) { l.proxies(f, n, id) }},
		field{"principals", func(n *yaml.Node) {
			f.list(n, "'principals'", func(e *yaml.Node) {
				var names []string
				a := assignment{}
				f.mapping(e, "a principal", f.textsInto("names", &names), f.textInto("tenant", &a.tenant), f.textsInto("groups", &a.groups))
				for _, name := range names {
					a.names = f.glob(e, a.names, name)
				}
				if len(names) == 0 {
					f.at(e, "a principal needs names")
				}
				id.assigned = append(id.assigned, a)
			})
		}})
	f.apart(doc, id.issuers)
	if id.trusted.networks == nil && !id.trusted.unix && id.trusted.names == nil && id.signing != nil {
		f.at(doc, "'proof-key' without 'trusted' proxies is never used")
	}
}

// apart refuses issuers whose tokens could give the same name: each of them could make
// itself any caller of the other.
func (f *faults) apart(n *yaml.Node, issuers []*issuer) {
	for i, a := range issuers {
		for _, b := range issuers[:i] {
			one := a.name == b.name && a.name != "" // with other audiences or claims
			if !one && (strings.HasPrefix(a.claims.prefix, b.claims.prefix) || strings.HasPrefix(b.claims.prefix, a.claims.prefix)) {
				f.at(n, "two issuers give names that begin alike ('%s', '%s'): each needs a 'prefix' of its own", clean(b.claims.prefix), clean(a.claims.prefix))
				return
			}
		}
	}
}

func (l *loading) proxies(f *faults, n *yaml.Node, id *identity) {
	var trusted []string
	var key string
	f.mapping(n, "'proxies'", f.textsInto("trusted", &trusted), f.textInto("proof-key", &key))
	id.trusted = f.peers(trusted, func(format string, args ...any) { f.at(n, format, args...) })
	if key == "" {
		return
	}
	data, err := l.files.File(beside(f.file, key))
	if text := strings.TrimSpace(string(data)); err == nil && len(text) < minSecret {
		err = fmt.Errorf("a secret has %d bytes, at least %d", len(text), minSecret)
	} else {
		id.signing = []byte(text)
	}
	if err != nil {
		f.at(n, "'proof-key': %s", err)
	}
}

// beside is a file's name relative to the one that names it.
func beside(file, name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(file), name)
}

// algorithms are those that tokens may be signed with. "none" is not one.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"}

func (l *loading) issuer(f *faults, n *yaml.Node, id *identity) {
	i := &issuer{leeway: 30 * time.Second, claims: claimNames{name: "sub", prefix: "jwt:"}}
	var keyFiles []string
	var jwks, ca, leeway string
	f.mapping(n, "an issuer of tokens", f.textInto("issuer", &i.name), f.textInto("jwks", &jwks), f.textsInto("keys", &keyFiles),
		f.textInto("ca", &ca), f.textsInto("audience", &i.audience), f.textsInto("algorithms", &i.algorithms), f.textInto("leeway", &leeway),
		f.textInto("name", &i.claims.name), f.textInto("tenant", &i.claims.tenant), f.textInto("groups", &i.claims.groups),
		f.textInto("prefix", &i.claims.prefix), f.textInto("group-prefix", &i.claims.groupPrefix))
	bad := func(format string, args ...any) { f.at(n, format, args...) }
	if len(i.audience) == 0 {
		bad("an issuer needs an audience: without one, tokens for other services would do")
	}
	if !strings.Contains(i.claims.prefix, ":") {
		bad("'prefix' is to have a colon, so that no token's name is that of an API key")
	}
	for _, p := range []string{"spiffe:", "dns:", "cn:"} {
		if strings.HasPrefix(i.claims.prefix, p) {
			bad("'prefix' is not to begin with %s: names of certificates do", p)
		}
	}
	for _, a := range i.algorithms {
		if !slices.Contains(algorithms, a) {
			bad("'%s' is not one of %s", clean(a), strings.Join(algorithms, ", "))
		}
	}
	if leeway != "" {
		d, err := time.ParseDuration(leeway)
		if err != nil || d < 0 || d > 10*time.Minute {
			bad("'leeway' is a duration up to 10m, as 30s")
		}
		i.leeway = d
	}
	for _, name := range keyFiles {
		data, err := l.files.File(beside(f.file, name))
		var keys []verifyKey
		if err == nil {
			keys, err = parseKeyFile(data, true)
		}
		if err != nil {
			bad("%s: %s", name, err)
		}
		i.static = append(i.static, keys...)
	}
	if err := l.remote(f, i, jwks, ca, len(keyFiles) > 0); err != nil {
		bad("%s", err)
	}
	id.issuers = append(id.issuers, i)
}

// remote gives an issuer the source of its keys, where they are to be fetched.
func (l *loading) remote(f *faults, i *issuer, jwks, ca string, static bool) (err error) {
	if jwks == "" && static {
		return nil
	}
	from := sourceID{jwks: jwks}
	if jwks == "" {
		from.issuer = i.name
	}
	if from == (sourceID{}) {
		return fmt.Errorf("an issuer needs its 'issuer' (whose keys are discovered), 'jwks' (where they are), or 'keys' (files)")
	}
	if err := checkURL(from.issuer + from.jwks); err != nil {
		return fmt.Errorf("'%s': %w", clean(from.issuer+from.jwks), err)
	}
	if ca != "" {
		data, err := l.files.File(beside(f.file, ca))
		if err != nil {
			return err
		}
		from.ca = string(data)
	}
	i.remote, err = l.source(from)
	return err
}
