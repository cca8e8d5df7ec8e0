package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
			lookUntilSettled(a)
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
			_, err := New(Config{Identity: filepath.Join(dir, "id.yaml")}, Deps{Log: slog.New(slog.DiscardHandler)})
			if (err == nil) != row.good {
				t.Errorf("got %v, want good %t", err, row.good)
			}
		})
	}
}

// lines are fields of a call as they came, some more than once.
type lines [][2]string

func (l lines) Count(name string) (n int) {
	for _, f := range l {
		if strings.EqualFold(f[0], name) {
			n++
		}
	}
	return n
}

func (l lines) get(name string) string {
	for _, f := range l {
		if strings.EqualFold(f[0], name) {
			return f[1]
		}
	}
	return ""
}

// TestFieldsGivenTwice: who stands before us could have looked at, or added, the other one.
func TestFieldsGivenTwice(t *testing.T) {
	key, line := newKey(t, "alice", "")
	dir := files(t, map[string]string{"keys": line, "signing": strings.Repeat("k", 40), "id.yaml": "api-keys: keys\n" + identityYAML})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	for _, row := range []struct {
		name string
		sent lines
	}{
		{"a forged certificate before the proxy's", lines{{"X-Forwarded-Client-Cert", "URI=spiffe://mesh/admin"}, {"X-Forwarded-Client-Cert", "URI=spiffe://mesh/web"}}},
		{"keys", lines{{"x-api-key", key}, {"X-API-KEY", "other"}}},
		{"tokens", lines{{"Authorization", "Bearer " + key}, {"authorization", "Bearer " + key}}},
		{"proofs", lines{{"x-sluice-proof", "v1.a.b"}, {"x-sluice-proof", "v1.a.b"}}},
	} {
		for _, protocol := range []string{"http", "grpc"} {
			env := call(envoy)
			env.Protocol, env.Header, env.Fields = protocol, row.sent.get, row.sent
			err := a.Open(t.Context(), env)
			if infer.CodeOf(err) != infer.Unauthenticated || !strings.Contains(err.Error(), "more than once") {
				t.Errorf("%s, %s: %v as %+v, want Unauthenticated", row.name, protocol, err, env.Principal)
			}
		}
	}
}

// TestEmptyForwardedHeaderIsNotLocal: a proxy's field counts behind an empty one of the client's.
func TestEmptyForwardedHeaderIsNotLocal(t *testing.T) {
	a := newAuth(t, Config{})
	sent := lines{{"X-Forwarded-For", ""}, {"X-Forwarded-For", "192.0.2.1"}}
	env := call(loopback)
	env.Action, env.Change, env.Header, env.Fields = infer.ActionModelRepository, true, sent.get, sent
	if err := a.Open(t.Context(), env); infer.ReasonOf(err) != infer.ReasonNotLocal {
		t.Errorf("got %v, want the reason not_local", err)
	}
}

// TestKeysStayOnHTTPS: an issuer can't make the server ask one of its own host, nor fetch in
// the clear.
func TestKeysStayOnHTTPS(t *testing.T) {
	for _, row := range []struct {
		from, to string
		good     bool
	}{
		{"https://id.example", "https://id.example/keys", true},
		{"https://id.example", "https://keys.example", true},
		{"https://id.example", "http://127.0.0.1:8000/v2", false},
		{"HTTPS://id.example", "http://localhost/", false},
		{"https://id.example", "http://id.example/keys", false},
		{"http://127.0.0.1:1", "http://127.0.0.1:1/keys", true},
		{"http://127.0.0.1:1", "http://192.0.2.1/keys", false},
		{"http://127.0.0.1:1", "file:///etc/passwd", false},
	} {
		if err := checkNext(row.from, row.to); (err == nil) != row.good {
			t.Errorf("from %s to %s: %v, want good %t", row.from, row.to, err, row.good)
		}
	}
}

// TestLongNamesStayText: a long name is cut between its letters.
func TestLongNamesStayText(t *testing.T) {
	dir := files(t, map[string]string{"policy": "rules:\n- {principals: root, actions: admin}\n"})
	a := newAuth(t, Config{Policy: filepath.Join(dir, "policy")})
	env := call(distant)
	env.Model = "x" + strings.Repeat("ä", 100)
	if err := a.Open(t.Context(), env); err == nil || !utf8.ValidString(err.Error()) || len(err.Error()) > 256 {
		t.Errorf("got %q", err)
	}
}
