package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-serve/sluice/infer"
)

// TestReloadWhileProving: a token that is being proved while its issuer is taken out of the
// file is not remembered beyond that.
func TestReloadWhileProving(t *testing.T) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	const issuer = "tokens:\n- {issuer: 'https://id.example', keys: ec.pem, audience: sluice}\n"
	dir := files(t, map[string]string{"ec.pem": publicPEM(t, key.Public()), "id.yaml": issuer,
		"other.pem": publicPEM(t, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).Public())})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	token := signer{jwt.SigningMethodES256, key, ""}.token(t, claims())
	reloaded := false
	a.now = func() time.Time { // is asked once the call has its state
		if !reloaded {
			reloaded = true
			write(t, filepath.Join(dir, "ec.pem"), publicPEM(t, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).Public()))
			if err := a.load(); err != nil {
				t.Error(err)
			}
		}
		return time.Now()
	}
	if err := a.Open(t.Context(), call(distant, "Authorization", "Bearer "+token)); err != nil || !reloaded {
		t.Fatalf("the call that began before: %v, reloaded %t", err, reloaded)
	}
	if err := a.Open(t.Context(), call(distant, "Authorization", "Bearer "+token)); infer.CodeOf(err) != infer.Unauthenticated {
		t.Errorf("with the issuer's key gone: %v, want Unauthenticated", err)
	}
}

// TestIssuersNamesDiffer: what one issuer writes into its tokens can't be a name of another's.
func TestIssuersNamesDiffer(t *testing.T) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	for _, row := range []struct {
		name, first, second string
		good                bool
	}{
		{"both by default", "", "", false},
		{"the same", "prefix: 'a:'", "prefix: 'a:'", false},
		{"one begins the other", "prefix: 'jwt:b:'", "", false},
		{"different", "prefix: 'a:'", "prefix: 'b:'", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			field := func(s string) string {
				if s != "" {
					s = ", " + s
				}
				return s
			}
			dir := files(t, map[string]string{"ec.pem": publicPEM(t, key.Public()), "id.yaml": "tokens:\n" +
				"- {issuer: 'https://a.example', keys: ec.pem, audience: sluice" + field(row.first) + "}\n" +
				"- {issuer: 'https://b.example', keys: ec.pem, audience: sluice" + field(row.second) + "}\n" +
				"- {issuer: 'https://a.example', keys: ec.pem, audience: other" + field(row.first) + "}\n"})
			_, err := New(Config{Identity: filepath.Join(dir, "id.yaml")}, slog.New(slog.DiscardHandler))
			if (err == nil) != row.good {
				t.Errorf("got %v, want good %t", err, row.good)
			}
		})
	}
}
