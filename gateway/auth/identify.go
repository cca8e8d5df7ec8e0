package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"strings"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
)

var (
	authorization   = headerName{"Authorization", "authorization"}
	apiKeyHeader    = headerName{"X-Api-Key", "x-api-key"}
	forwardedHeader = headerName{"X-Forwarded-Client-Cert", "x-forwarded-client-cert"}
	proofHeader     = headerName{"X-Sluice-Proof", ProofHeader}
)

// What a digest is of: a text that proves something in one place proves nothing in
// another.
const (
	ofToken byte = iota + 1
	ofForwarded
	ofSigned
	ofCertificate
)

// digestOf is SHA-256 of a text, without a copy of it.
func digestOf(s string) [sha256.Size]byte {
	return sha256.Sum256(unsafe.Slice(unsafe.StringData(s), len(s)))
}

// kept is the digest under which what a text proved is remembered.
func kept(kind byte, digest [sha256.Size]byte) [sha256.Size]byte {
	digest[0] ^= kind
	return digest
}

// asking is what a call is held against.
type asking struct {
	*identity
	epoch   uint64 // of what is proved by it
	byProxy bool   // a proxy asks about its client: no address is trusted
}

// identify finds who calls: by what our ext_authz signed, by what the call itself shows,
// by what a trusted proxy forwards, by the connection's certificate. What is shown must
// hold: a wrong key is an error, not nobody.
func (a *Auth) identify(id asking, env *infer.Envelope) (*infer.Principal, error) {
	trusted := !id.byProxy && id.trusted.near(env)
	var holder proven
	if env.Certificate != nil && (id.certNames != nil || id.trusted.names != nil) {
		var err error
		if holder, err = a.holder(id, env.Certificate); err != nil {
			return nil, err
		}
		trusted = trusted || holder.proxy
	}
	if trusted && id.signing != nil {
		v, err := proofHeader.of(env)
		if err != nil {
			return nil, err
		}
		if v != "" {
			return a.remember(ofSigned, v, id.epoch, func(now time.Time) (*infer.Principal, time.Time, error) {
				p, until, err := readSigned(id.signing, v, now)
				if err != nil {
					err = refuse(err.Error())
				}
				return p, until, err
			})
		}
	}
	key, err := apiKeyHeader.of(env)
	if err != nil {
		return nil, err
	}
	if key != "" {
		return a.byKey(id.identity, key)
	}
	bearer, err := authorization.of(env)
	if err != nil {
		return nil, err
	}
	if scheme, credential, _ := strings.Cut(bearer, " "); strings.EqualFold(scheme, "bearer") {
		if credential = strings.TrimSpace(credential); len(id.issuers) == 0 || !looksLikeToken(credential) {
			return a.byKey(id.identity, credential)
		}
		return a.remember(ofToken, credential, id.epoch, func(now time.Time) (*infer.Principal, time.Time, error) {
			p, until, err := verifyToken(id.issuers, credential, now)
			if err != nil {
				return nil, until, err
			}
			return id.assign(p), until, nil
		})
	}
	if trusted { // its own certificate is not its callers'
		v, err := forwardedHeader.of(env)
		if err != nil || v == "" {
			return nobody, err
		}
		return a.byForwarded(id, v)
	}
	if holder.principal != nil {
		return holder.principal, nil
	}
	return nobody, nil
}

// remember proves a text once for as long as it is good.
func (a *Auth) remember(kind byte, text string, epoch uint64, prove func(now time.Time) (*infer.Principal, time.Time, error)) (*infer.Principal, error) {
	digest := kept(kind, digestOf(text))
	now := a.now()
	if p, ok := a.proved.find(&digest, now.Unix(), epoch); ok {
		return p.principal, nil
	}
	p, until, err := prove(now)
	if err != nil {
		return nil, err
	}
	a.proved.put(digest, proven{principal: p, until: until.Unix(), keys: epoch})
	return p, nil
}

func (a *Auth) byKey(id *identity, key string) (*infer.Principal, error) {
	digest := digestOf(key)
	k := id.keys.find(&digest)
	if k == nil || !k.expires.IsZero() && !a.now().Before(k.expires) {
		return nil, errKey
	}
	return k.principal, nil
}

var errKey = refuse("the API key is not known")

// forwardedTime is how long what a forwarded certificate says is remembered.
const forwardedTime = time.Hour

func (a *Auth) byForwarded(id asking, header string) (*infer.Principal, error) {
	return a.remember(ofForwarded, header, id.epoch, func(now time.Time) (*infer.Principal, time.Time, error) {
		shown, err := parseForwarded(header)
		if err != nil {
			return nil, now, refuse(err.Error())
		}
		return id.certified(shown, "forwarded"), now.Add(forwardedTime), nil
	})
}

// holder is whom a certificate names, as far as the identity file takes certificates.
func (a *Auth) holder(id asking, c *x509.Certificate) (proven, error) {
	now := a.now()
	made := len(c.Raw) == 0 // of a proxy that told us the name alone
	if !made && now.After(c.NotAfter) {
		return proven{}, refuse("the client certificate has expired") // the connection outlived it
	}
	digest := kept(ofCertificate, sha256.Sum256(c.Raw))
	if p, ok := a.proved.find(&digest, now.Unix(), id.epoch); ok && !made {
		return p, nil
	}
	shown := of(c)
	p := proven{until: c.NotAfter.Unix(), keys: id.epoch, proxy: id.trusted.vouches(&shown)}
	if id.certNames != nil {
		p.principal = id.certified(shown, "certificate")
	}
	if !made {
		a.proved.put(digest, p)
	}
	return p, nil
}

// certified is the principal that a certificate names, nobody where it names none.
func (id *identity) certified(shown presented, method string) *infer.Principal {
	order := id.certNames
	if order == nil {
		order = []string{nameSPIFFE, nameDNS, nameCN}
	}
	name := shown.name(order)
	if name == "" {
		return nobody
	}
	return id.assign(&infer.Principal{Name: name, Method: method})
}
