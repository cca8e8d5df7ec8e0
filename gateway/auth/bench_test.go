package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-serve/sluice/infer"
)

// opening are the calls whose cost and allocations are looked at: all from memory.
func opening(t testing.TB) map[string]struct {
	a   *Auth
	env *infer.Envelope
} {
	key, line, err := NewKey("alice", "blue", []string{"ops"})
	if err != nil {
		t.Fatal(err)
	}
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	dir := t.TempDir()
	for name, text := range map[string]string{"keys": line, "rsa.pem": publicPEM(t, rsaKey.Public()), "signing": strings.Repeat("k", 40),
		"id.yaml": identityYAML + "api-keys: keys\ntokens:\n- {keys: rsa.pem, audience: sluice}\n",
		"policy": "rules:\n" + strings.Repeat("- {principals: [bob, 'team-*'], groups: [dev], actions: [infer], models: ['x*', y]}\n", 20) +
			"- {principals: [authenticated], actions: infer, models: ['m*']}\n"} {
		if err := writeFile(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	with := func(cfg Config) *Auth {
		a, err := New(cfg, Deps{Log: discard})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	known := with(Config{Identity: filepath.Join(dir, "id.yaml"), Policy: filepath.Join(dir, "policy")})
	restriction, err := ParseRestriction("f", "api", "inference:admin=secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	token := signer{jwt.SigningMethodRS256, rsaKey, ""}.token(t, claims("realm", map[string]any{"roles": []string{"ops", "dev"}}))
	certified := call(distant)
	certified.Certificate = certificate([]string{"spiffe://mesh/ns/prod/app"}, nil, "")
	certified.Certificate.Raw = make([]byte, 900)
	type row = struct {
		a   *Auth
		env *infer.Envelope
	}
	return map[string]row{
		"open":        {with(Config{}), call(distant)},
		"api-key":     {known, call(distant, "Authorization", "Bearer "+key)},
		"jwt":         {known, call(distant, "Authorization", "Bearer "+token)},
		"certificate": {known, certified},
		"forwarded":   {known, call(envoy, "X-Forwarded-Client-Cert", `By=spiffe://mesh/envoy;Hash=ab;URI=spiffe://mesh/ns/prod/web`)},
		"restricted":  {with(Config{HTTP: []Restriction{restriction}}), call(distant, "admin", "secret")},
	}
}

func BenchmarkOpen(b *testing.B) {
	for name, row := range opening(b) {
		header := fixed(row.env)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				row.env.Header, row.env.Principal = header, nil
				if err := row.a.Open(b.Context(), row.env); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fixed is the envelope's header without the test's own cost.
func fixed(env *infer.Envelope) func(string) string {
	names := []string{"Authorization", "X-Api-Key", "X-Forwarded-Client-Cert", "X-Sluice-Proof", "admin"}
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = env.Header(name)
	}
	return func(key string) string {
		for i := range names {
			if names[i] == key {
				return values[i]
			}
		}
		return ""
	}
}

func TestOpenAllocatesNothing(t *testing.T) {
	for name, row := range opening(t) {
		row.env.Header = fixed(row.env)
		open := func() {
			if err := row.a.Open(t.Context(), row.env); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		open()
		if n := testing.AllocsPerRun(100, open); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// TestRememberedIsBounded: what is asked for stays, what is not leaves.
func TestRememberedIsBounded(t *testing.T) {
	r := newRemembered(100)
	p := &infer.Principal{Name: "a"}
	often := digestOf("often")
	r.put(often, proven{principal: p, until: 10, keys: 1})
	for i := range 10000 {
		d := digestOf(strings.Repeat("x", i%100) + string(rune(i)))
		r.put(d, proven{principal: p, until: 10, keys: 1})
		if i%20 != 0 {
			continue
		}
		if found, ok := r.find(&often, 5, 1); !ok || found.principal != p {
			t.Fatalf("after %d others: gone, although it is asked for", i)
		}
		if n := r.len(); n > 101 {
			t.Fatalf("%d are remembered, at most 100", n)
		}
	}
	_, ended := r.find(&often, 10, 1)
	if _, ok := r.find(&often, 5, 2); ok || ended {
		t.Error("found at its end, or with other keys")
	}
}
