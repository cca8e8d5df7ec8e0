package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-serve/sluice/infer"
)

// signer makes tokens.
type signer struct {
	method jwt.SigningMethod
	key    any
	kid    string
}

func (s signer) token(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(s.method, claims)
	if s.kid != "" {
		token.Header["kid"] = s.kid
	}
	text, err := token.SignedString(s.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claims are good ones, with others in their place.
func claims(others ...any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "https://id.example", "aud": "sluice", "sub": "carol", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(others); i += 2 {
		name, _ := others[i].(string)
		if c[name] = others[i+1]; others[i+1] == nil {
			delete(c, name)
		}
	}
	return c
}

func publicPEM(t testing.TB, key any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func jwks(t testing.TB, keys ...jose.JSONWebKey) string {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func must[K any](key K, err error) K {
	if err != nil {
		panic(err)
	}
	return key
}

func TestTokens(t *testing.T) {
	rsaKey, other := must(rsa.GenerateKey(rand.Reader, 2048)), must(rsa.GenerateKey(rand.Reader, 2048))
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte(strings.Repeat("s3", 20))
	publicText := publicPEM(t, rsaKey.Public())
	dir := files(t, map[string]string{
		"rsa.pem": publicText, "ec.pem": publicPEM(t, ec.Public()),
		"more.jwks": jwks(t, jose.JSONWebKey{Key: ed.Public(), KeyID: "ed"}, jose.JSONWebKey{Key: secret, KeyID: "hs", Algorithm: "HS256"}),
		"id.yaml": `tokens:
- issuer: https://id.example
  keys: [rsa.pem, ec.pem, more.jwks]
  audience: [sluice, other]
  groups: realm.roles
  group-prefix: "g:"
- issuer: https://tenants.example
  keys: ec.pem
  audience: sluice
  algorithms: ES256
  name: email
  tenant: https://example.com/tenant
  prefix: "t:"
`})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	rs := signer{jwt.SigningMethodRS256, rsaKey, ""}
	es := signer{jwt.SigningMethodES256, ec, ""}
	now := time.Now()
	unsigned := must(jwt.NewWithClaims(jwt.SigningMethodNone, claims()).SignedString(jwt.UnsafeAllowNoneSignatureType))
	critical := jwt.NewWithClaims(jwt.SigningMethodES256, claims())
	critical.Header["crit"] = []string{"b64"}
	for _, row := range []struct{ name, token, want, tenant string }{
		{"RS256", rs.token(t, claims()), "jwt:carol", ""},
		{"PS512", signer{jwt.SigningMethodPS512, rsaKey, ""}.token(t, claims()), "jwt:carol", ""},
		{"ES256", es.token(t, claims("realm", map[string]any{"roles": []string{"ops"}})), "jwt:carol", ""},
		{"EdDSA", signer{jwt.SigningMethodEdDSA, ed, "ed"}.token(t, claims()), "jwt:carol", ""},
		{"HS256", signer{jwt.SigningMethodHS256, secret, "hs"}.token(t, claims()), "jwt:carol", ""},
		{"one audience of many", rs.token(t, claims("aud", []string{"x", "other"})), "jwt:carol", ""},
		{"ended within the leeway", rs.token(t, claims("exp", now.Add(-10*time.Second).Unix())), "jwt:carol", ""},
		{"a tenant", es.token(t, claims("iss", "https://tenants.example", "email", "a@b.example", "https://example.com/tenant", "blue")), "t:a@b.example", "blue"},

		{"no tenant", es.token(t, claims("iss", "https://tenants.example", "email", "a@b.example")), "the token has no tenant of the caller", ""},
		{"a key of the other issuer", rs.token(t, claims("iss", "https://tenants.example", "email", "a@b.example")), "signed with a key that is not known", ""},
		{"HS384 with a key for HS256", signer{jwt.SigningMethodHS384, secret, "hs"}.token(t, claims()), "signed with a key that is not known", ""},
		{"algorithm confusion: the public key as a secret", signer{jwt.SigningMethodHS256, []byte(publicText), ""}.token(t, claims()), "the token is not valid", ""},
		{"none", unsigned, "signed with a key that is not known", ""},
		{"another key", signer{jwt.SigningMethodRS256, other, ""}.token(t, claims()), "the token is not valid", ""},
		{"an unknown kid", signer{jwt.SigningMethodEdDSA, ed, "edd"}.token(t, claims()), "signed with a key that is not known", ""},
		{"expired", rs.token(t, claims("exp", now.Add(-time.Minute).Unix())), "the token has expired", ""},
		{"without an end", rs.token(t, claims("exp", nil)), "the token is not valid", ""},
		{"not yet", rs.token(t, claims("nbf", now.Add(time.Minute).Unix())), "the token is not valid yet", ""},
		{"another audience", rs.token(t, claims("aud", "billing")), "the token is for another audience", ""},
		{"without an audience", rs.token(t, claims("aud", nil)), "the token is not valid", ""},
		{"another issuer", rs.token(t, claims("iss", "https://evil.example")), "the token is not valid", ""},
		{"without a name", rs.token(t, claims("sub", nil)), "the token has no name of the caller", ""},
		{"a name with a line break", rs.token(t, claims("sub", "a\nb")), "the token has no name of the caller", ""},
		{"critical parts", must(critical.SignedString(ec)), "the token is not valid", ""},
		{"no token", "a.b.c", "the token is not valid", ""},
		{"too long", "a.b." + strings.Repeat("c", maxToken), "the token is not valid", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			for range 2 { // the second time from memory
				p := show(t, a, row.token, row.want)
				if p == nil {
					continue
				}
				if p.Name != row.want || p.Tenant != row.tenant || p.Method != "jwt" {
					t.Fatalf("got %+v, want %q of tenant %q", p, row.want, row.tenant)
				}
				if row.name == "ES256" && (len(p.Groups) != 1 || p.Groups[0] != "g:ops") {
					t.Errorf("groups %q, want g:ops", p.Groups)
				}
			}
		})
	}
}

// show gives the caller that a token proves, or nil where it is refused, which must be
// with want.
func show(t *testing.T, a *Auth, token, want string) *infer.Principal {
	t.Helper()
	env := call(distant, "Authorization", "Bearer "+token)
	err := a.Open(t.Context(), env)
	if err == nil {
		return env.Principal
	}
	if infer.CodeOf(err) != infer.Unauthenticated || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), token) {
		t.Fatalf("got %v, want %q", err, want)
	}
	return nil
}

func TestRememberedTokenEnds(t *testing.T) {
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	dir := files(t, map[string]string{"ec.pem": publicPEM(t, ec.Public()), "id.yaml": "tokens:\n- {keys: ec.pem, audience: sluice, leeway: 0s}\n"})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	token := signer{jwt.SigningMethodES256, ec, ""}.token(t, claims())
	now := time.Now()
	for _, row := range []struct {
		after time.Duration
		ok    bool
	}{{0, true}, {59 * time.Minute, true}, {time.Hour + time.Second, false}} {
		a.now = func() time.Time { return now.Add(row.after) }
		if err := a.Open(t.Context(), call(distant, "Authorization", "Bearer "+token)); (err == nil) != row.ok {
			t.Errorf("after %v: %v, want ok %t", row.after, err, row.ok)
		}
	}
}

// issuerServer publishes keys.
type issuerServer struct {
	*httptest.Server
	mu      sync.Mutex
	text    string // mu
	failing bool   // mu
	fetched atomic.Int32
}

func newIssuer(t *testing.T) *issuerServer {
	s := &issuerServer{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": s.URL, "jwks_uri": s.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		s.fetched.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failing {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(s.text))
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *issuerServer) publish(text string, failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.failing = text, failing
}

// TestRotation: keys are discovered, fetched, and fetched again for a token with a key
// that is not known; those that were there stay while the issuer is down.
func TestRotation(t *testing.T) {
	issuer := newIssuer(t)
	first, second := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	issuer.publish(jwks(t, jose.JSONWebKey{Key: first.Public(), KeyID: "1", Use: "sig"}), true)
	dir := files(t, map[string]string{"id.yaml": "tokens:\n- {issuer: '" + issuer.URL + "', audience: sluice}\n"})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() { stop(); <-ended }()
	token1 := signer{jwt.SigningMethodES256, first, "1"}.token(t, claims("iss", issuer.URL))
	token2 := signer{jwt.SigningMethodES256, second, "2"}.token(t, claims("iss", issuer.URL))
	ask := func(token string) error {
		return a.Open(ctx, call(distant, "Authorization", "Bearer "+token))
	}
	if err := ask(token1); err == nil || infer.CodeOf(err) != infer.Unavailable || infer.ReasonOf(err) != infer.ReasonKeysPending {
		t.Fatalf("before there are keys: %v, want Unavailable", err)
	}
	issuer.publish(jwks(t, jose.JSONWebKey{Key: first.Public(), KeyID: "1"}), false)
	until(t, "the first key is there", func() bool { return ask(token1) == nil })
	issuer.publish(jwks(t, jose.JSONWebKey{Key: second.Public(), KeyID: "2"}), false)
	if err := ask(token2); err == nil || infer.CodeOf(err) != infer.Unauthenticated {
		t.Fatalf("a key that is not there, just after a fetch: %v, want Unauthenticated", err)
	}
	source := a.state.Load().identity.issuers[0].remote
	source.mu.Lock()
	source.state.tried = source.state.tried.Add(-unknownEvery) // as if time had passed
	source.mu.Unlock()
	if err := ask(token2); err == nil || infer.CodeOf(err) != infer.Unavailable {
		t.Fatalf("a key that is not there: %v, want Unavailable", err)
	}
	until(t, "the second key is there", func() bool { return ask(token2) == nil })
	if err := ask(token1); err == nil || infer.CodeOf(err) != infer.Unauthenticated {
		t.Errorf("a key that is gone: %v, want Unauthenticated, although it was remembered", err)
	}
	issuer.publish("", true)
	source.mu.Lock()
	source.state.fetched = source.state.fetched.Add(-refreshEvery)
	source.mu.Unlock()
	source.wake <- struct{}{}
	before := issuer.fetched.Load()
	until(t, "the issuer was asked again", func() bool { return issuer.fetched.Load() > before })
	if err := ask(token2); err != nil {
		t.Errorf("while the issuer is down: %v", err)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

func TestSourceBounds(t *testing.T) {
	for name, body := range map[string]string{"too large": `{"keys": [], "x": "` + strings.Repeat("x", fetchBytes) + `"}`, "no JSON": "<html>", "empty": `{"keys": []}`,
		"a secret": jwks(t, jose.JSONWebKey{Key: []byte(strings.Repeat("s", 40)), KeyID: "1"})} {
		t.Run(name, func(t *testing.T) {
			issuer := newIssuer(t)
			issuer.publish(body, false)
			s, err := newSource(sourceID{jwks: issuer.URL + "/keys"}, slog.New(slog.DiscardHandler), func() {})
			if err != nil {
				t.Fatal(err)
			}
			if keys, _, err := s.get(t.Context()); err == nil {
				t.Errorf("got %d keys", len(keys))
			}
		})
	}
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	if _, err := parseKeyFile([]byte(publicPEM(t, small.Public())), true); err == nil || !strings.Contains(err.Error(), "1024 bits") {
		t.Errorf("an RSA key of 1024 bits: %v", err)
	}
	if _, err := parseJWKs([]byte(jwks(t, jose.JSONWebKey{Key: crypto.PublicKey(small.Public()), KeyID: "1"})), true); err == nil {
		t.Error("a small key in a set is taken")
	}
	short := `{"kty":"oct","k":"` + base64.RawURLEncoding.EncodeToString([]byte("short")) + `"}`
	if _, err := parseKeyFile([]byte(short), true); err == nil || strings.Contains(err.Error(), "c2hvcnQ") {
		t.Errorf("a short secret: %v", err)
	}
}
