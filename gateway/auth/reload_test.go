package auth

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
	"github.com/sluice-serve/sluice/internal/configfile/configfiletest"
)

// following is an Auth that reads its files again until t ends.
type following struct {
	*Auth
	mu    sync.Mutex
	heard []error
}

func follow(t *testing.T, cfg Config) *following {
	t.Helper()
	f := &following{}
	a, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler), Reloaded: func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.heard = append(f.heard, err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.Auth = a
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *following) results() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard
}

// passes says that a call with a header is answered.
func (f *following) passes(header, value string) bool {
	err := f.Open(context.Background(), call(distant, header, value))
	return err == nil
}

// answered names the answer for a call of the first and one of the other content.
func answered(first, other bool) string {
	switch {
	case first && !other:
		return "first"
	case other && !first:
		return "other"
	case !first:
		return "nothing"
	}
	return "both"
}

// bothMayInfer is a policy for the callers first and other.
const bothMayInfer = "rules:\n- {principals: [first, other], actions: infer}\n"

// whose says which of two API keys is answered.
func (f *following) whose(first, other string) func() string {
	return func() string { return answered(f.passes("X-Api-Key", first), f.passes("X-Api-Key", other)) }
}

// TestReloadOfKeys: a file of API keys that is cut, emptied or removed takes no caller's key away.
func TestReloadOfKeys(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		first, firstLine := newKey(t, "first", "")
		other, otherLine := newKey(t, "other", "")
		_, line := newKey(t, "third", "")
		dir := files(t, map[string]string{"keys": firstLine + line, "policy": bothMayInfer})
		f := follow(t, Config{APIKeys: filepath.Join(dir, "keys"), Policy: filepath.Join(dir, "policy")})
		return configfiletest.Subject{File: filepath.Join(dir, "keys"), First: firstLine + line, Other: otherLine + line,
			Nothing: "# for today\nno keys\n", Comment: "# none\n\n", Results: f.results, State: f.whose(first, other)}
	})
}

func TestReloadOfPolicy(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		first, firstLine := newKey(t, "first", "")
		other, otherLine := newKey(t, "other", "")
		text := "rules:\n- {principals: [first], actions: infer}\n"
		dir := files(t, map[string]string{"keys": firstLine + otherLine, "policy": text})
		f := follow(t, Config{APIKeys: filepath.Join(dir, "keys"), Policy: filepath.Join(dir, "policy")})
		return configfiletest.Subject{File: filepath.Join(dir, "policy"), First: text,
			Other: strings.Replace(text, "first", "other", 1), Comment: "# none\n", Results: f.results, State: f.whose(first, other)}
	})
}

// TestReloadOfIdentity: the identity file names the file of keys, and then another one.
func TestReloadOfIdentity(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		first, firstLine := newKey(t, "first", "")
		other, otherLine := newKey(t, "other", "")
		text := "certificates: {names: [spiffe]}\napi-keys: first\nproxies: {trusted: unix}\n"
		dir := files(t, map[string]string{"first": firstLine, "other": otherLine, "id": text, "policy": bothMayInfer})
		f := follow(t, Config{Identity: filepath.Join(dir, "id"), Policy: filepath.Join(dir, "policy")})
		return configfiletest.Subject{File: filepath.Join(dir, "id"), First: text, Other: strings.Replace(text, "first", "other", 1),
			Comment: "# none\n", Nothing: "api-keys: \"\"\ncertificates: {}\nproxies: {}\n", Results: f.results,
			State: f.whose(first, other)}
	})
}

// TestReloadOfRestriction: the file with the value of a restricted API's header.
func TestReloadOfRestriction(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		dir := files(t, map[string]string{"value": "the-first-value\n"})
		file := filepath.Join(dir, "value")
		f := follow(t, Config{HTTP: []Restriction{{Actions: []infer.Action{infer.ActionInference}, Key: "k", Value: "@" + file}}})
		return configfiletest.Subject{File: file, First: "the-first-value\n", Other: "another-value\n", Results: f.results,
			State: func() string { return answered(f.passes("k", "the-first-value"), f.passes("k", "another-value")) }}
	})
}

// TestReloadOfIssuerKeys: a file of an issuer's public keys, as PEM.
func TestReloadOfIssuerKeys(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		first, other := ownPEM(t), ownPEM(t)
		dir := files(t, map[string]string{"keys.pem": first,
			"id": "tokens:\n- {issuer: 'https://a', audience: b, keys: keys.pem}\n"})
		f := follow(t, Config{Identity: filepath.Join(dir, "id")})
		is := func(text string) bool {
			want, err := parseKeyFile([]byte(text), true)
			return err == nil && sameKey(want[0].key, f.Auth.state.Load().identity.issuers[0].static[0].key)
		}
		return configfiletest.Subject{File: filepath.Join(dir, "keys.pem"), First: first, Other: other, Results: f.results,
			State: func() string { return answered(is(first), is(other)) }}
	})
}

// TestStartWithNothing: a file that says nothing ends the start.
func TestStartWithNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for _, text := range []string{"", "\n", "# none\n"} {
		write(t, file, text)
		for words, cfg := range map[string]Config{"a line 'no keys'": {APIKeys: file}, "'tokens: []'": {Identity: file},
			"says nothing": {Policy: file}} {
			if _, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%q: %v, want %q", text, err, words)
			}
		}
	}
	if _, err := New(Config{Policy: filepath.Join(dir, "none")}, Deps{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func ownPEM(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func sameKey(a, b any) bool {
	k, ok := a.(ed25519.PublicKey)
	return ok && k.Equal(b.(ed25519.PublicKey))
}

// lookUntilSettled looks at the files as often as it takes.
func lookUntilSettled(a *Auth) {
	now := time.Now()
	for range 3 {
		now = now.Add(configfile.Period)
		a.look(now)
	}
}
