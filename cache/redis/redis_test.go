package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/cache/local"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/internal/redistest"
)

func TestSuite(t *testing.T) {
	s := redistest.Start(t)
	cachetest.Run(t, func(t *testing.T) cache.Level {
		return open(t, s.Port, func(c *Config) { c.Prefix = t.Name() + "[*]:" })
	})
}

func TestSuiteBehindLocal(t *testing.T) {
	s := redistest.Start(t)
	cachetest.Run(t, func(t *testing.T) cache.Level {
		return cache.Tiers{local.New(local.Config{Size: 1 << 20}), open(t, s.Port, func(c *Config) { c.Prefix = t.Name() + ":" })}
	})
}

func TestNothingIsLeftRunning(t *testing.T) {
	s := redistest.Start(t)
	before := goleak.IgnoreCurrent()
	c := open(t, s.Port, nil)
	r := &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
	r.Insert(cachetest.Subject("m", "1", 1), cachetest.Request(1), cachetest.Response(1))
	r.Arrives(t, cachetest.Subject("m", "1", 1), cachetest.Request(1))
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := leak.Find(before); err != nil {
		t.Error(err)
	}
}

// Two gateways share what they loaded alike, also after a restart, and a version whose
// content is not known stays out.
func TestShared(t *testing.T) {
	s := redistest.Start(t)
	_, a := rig(t, s.Port, nil)
	_, b := rig(t, s.Port, nil)
	here, there := cachetest.Subject("m", "1", 1), cachetest.Subject("m", "1", 1)
	there.Load = 77
	a.Insert(here, cachetest.Request(1), cachetest.Response(9))
	if e := b.Arrives(t, there, cachetest.Request(1)); e.Outputs[0].Data[0] != 9 {
		t.Errorf("got %+v", e)
	}
	unknown := &cache.Subject{Model: "m", Version: "1", Load: 1}
	a.Insert(unknown, cachetest.Request(2), cachetest.Response(9))
	if e := a.Lookup(t.Context(), unknown, cachetest.Request(2)); e != nil {
		t.Errorf("a version of unknown content was shared: %+v", e)
	}
}

// Age counts from when the answer was made, in whatever process.
func TestAge(t *testing.T) {
	s := redistest.Start(t)
	_, r := rig(t, s.Port, nil)
	sub, req := cachetest.Subject("m", "1", 1), cachetest.Request(1)
	q := r.Keys.Query(sub, req)
	r.Level.Insert(q, cache.NewEntry(q, cachetest.Response(1), infer.Now()-int64(90*time.Second), 0))
	q.Done()
	if age := r.Arrives(t, sub, req).Response(req, infer.Now()).Age; age < 90*time.Second || age > 100*time.Second {
		t.Errorf("age %v, want 90 s", age)
	}
}

// What stands under our keys and is not ours, or not whole, is a miss, and is replaced.
func TestForeignData(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, nil)
	sub := cachetest.Subject("m", "1", 1)
	name := func(req *infer.Request) string {
		q := r.Keys.Query(sub, req)
		defer q.Done()
		key, _ := q.Shared()
		return c.key(q, &key)
	}
	good := func(req *infer.Request) []byte {
		q := r.Keys.Query(sub, req)
		defer q.Done()
		key, _ := q.Shared()
		return encode(&key, cache.NewEntry(q, cachetest.Response(1), infer.Now(), 0), time.Now())
	}
	ctx := t.Context()
	flip := func(b []byte, at int) []byte { b[at] ^= 1; return b }
	foreign := map[string]func(req *infer.Request) error{
		"text":   func(req *infer.Request) error { return c.client.Set(ctx, name(req), "hello", 0).Err() },
		"empty":  func(req *infer.Request) error { return c.client.Set(ctx, name(req), "", 0).Err() },
		"a hash": func(req *infer.Request) error { return c.client.HSet(ctx, name(req), "0_data", "x").Err() },
		"cut off": func(req *infer.Request) error {
			b := good(req)
			return c.client.Set(ctx, name(req), b[:len(b)-1], 0).Err()
		},
		"one bit": func(req *infer.Request) error { return c.client.Set(ctx, name(req), flip(good(req), 80), 0).Err() },
		"checksum": func(req *infer.Request) error {
			b := good(req)
			return c.client.Set(ctx, name(req), flip(b, len(b)-1), 0).Err()
		},
		"another key": func(req *infer.Request) error {
			return c.client.Set(ctx, name(req), good(cachetest.Request(200)), 0).Err()
		},
		"other form": func(req *infer.Request) error { return c.client.Set(ctx, name(req), flip(good(req), 7), 0).Err() },
	}
	i := byte(0)
	for what, set := range foreign {
		i++
		req := cachetest.Request(i)
		if err := set(req); err != nil {
			t.Fatal(err)
		}
		if e := r.Lookup(ctx, sub, req); e != nil {
			t.Errorf("%s: found %+v", what, e)
		}
		r.Insert(sub, req, cachetest.Response(i))
		if e := r.Arrives(t, sub, req); e.Outputs[0].Data[0] != i {
			t.Errorf("%s: after the fill found %+v", what, e)
		}
	}
	if f := c.Figures()[0]; f.Failures != 0 || f.Open {
		t.Errorf("foreign data is no failure of Redis: %+v", f)
	}
}

func TestKeysAndTTL(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, func(c *Config) { c.Prefix, c.TTL = "team:", time.Minute })
	sub := cachetest.Subject("m:1", "2", 1)
	sub.Tags = []string{"a,b", "c"}
	r.Insert(sub, cachetest.Request(1), cachetest.Response(1))
	r.Arrives(t, sub, cachetest.Request(1))
	keys, err := c.client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 1 || !strings.HasPrefix(keys[0], "team:m%3A1:2:,a%2Cb,c,:") || len(keys[0]) != len("team:m%3A1:2:,a%2Cb,c,:")+64 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	if ttl := c.client.TTL(t.Context(), keys[0]).Val(); ttl < 50*time.Second || ttl > time.Minute {
		t.Errorf("TTL %v, want a minute", ttl)
	}
}

func TestPassword(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret")
	_, r := rig(t, s.Port, func(c *Config) { c.Password = "secret" })
	r.Insert(cachetest.Subject("m", "1", 1), cachetest.Request(1), cachetest.Response(1))
	r.Arrives(t, cachetest.Subject("m", "1", 1), cachetest.Request(1))

	_, wrong := rig(t, s.Port, func(c *Config) { c.Password = "wrong" })
	if e := wrong.Lookup(t.Context(), cachetest.Subject("m", "1", 1), cachetest.Request(1)); e != nil {
		t.Errorf("without the password: %+v", e)
	}
}

// A Redis without room refuses fills; that is no reason not to ask it.
func TestFull(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	c, r := rig(t, s.Port, nil)
	sub := cachetest.Subject("m", "1", 1)
	for i := range byte(40) {
		r.Lookup(t.Context(), sub, cachetest.Request(i))
		r.Insert(sub, cachetest.Request(i), cachetest.Response(i))
	}
	for end := time.Now().Add(time.Minute); c.Figures()[0].Dropped < 40; wait(t, time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("figures %+v", c.Figures()[0])
		}
	}
	if f := c.Figures()[0]; f.Open || f.Failures != 0 {
		t.Errorf("figures %+v", f)
	}
}

func TestParseConfig(t *testing.T) {
	full := map[string]string{"host": "h", "port": "1", "user": "u", "password": "a,b=c", "db": "2", "connect_timeout": "3", "socket_timeout": "4",
		"pool_size": "5", "wait_timeout": "6", "sni": "s", "budget": "7", "prefix": "p", "ttl": "8"}
	got, err := ParseConfig(full)
	want := Config{Host: "h", Port: "1", User: "u", Password: "a,b=c", DB: 2, ConnectTimeout: 3e6, SocketTimeout: 4e6, PoolSize: 5, WaitTimeout: 6e6,
		TLS: TLS{Enabled: true, SNI: "s"}, Budget: 7e6, Prefix: "p", TTL: 8e9}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if c := (Config{}).withDefaults(); c.Budget != 5*time.Millisecond || c.PoolSize != 16 || c.TTL != time.Hour {
		t.Errorf("defaults %+v", c)
	}
	for name, value := range map[string]string{"db": "x", "pool_size": "0", "budget": "-1", "ttl": "0", "tls_enabled": "maybe", "cert": "only", "wait_timeout": "1s"} {
		if _, err := ParseConfig(map[string]string{"host": "h", "port": "1", name: value}); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	if _, err := ParseConfig(map[string]string{"host": "h"}); err == nil || !strings.Contains(err.Error(), "Must at a minimum specify 'host' and 'port'") {
		t.Errorf("without a port: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	k := cache.NewKeys()
	q := k.Query(cachetest.Subject("m", "1", 1), cachetest.Request(1))
	key, _ := q.Shared()
	whole := encode(&key, cache.NewEntry(q, cachetest.Response(1, 2), infer.Now(), 0), time.UnixMilli(5))
	f.Add(whole[len(magic)+32 : len(whole)-sumBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		// as somebody would who knows the form and signs what he likes
		b := sign(slices.Concat([]byte(magic), key[:], body))
		resp, stored, ok := decode(b, &key)
		if !ok {
			return
		}
		if e := cache.Adopt(q, &resp, infer.Now(), 0); e != nil {
			again := encode(&key, e, stored)
			if string(again) != string(b) && len(resp.Params) == 0 {
				t.Errorf("%x was read and is written as %x", b, again)
			}
		}
	})
}

func TestEncodeIsDecoded(t *testing.T) {
	k := cache.NewKeys()
	q := k.Query(cachetest.Subject("m", "1", 1), cachetest.Request(1))
	key, _ := q.Shared()
	b := encode(&key, cache.NewEntry(q, cachetest.Response(1, 2), infer.Now(), 0), time.UnixMilli(5))
	resp, stored, ok := decode(b, &key)
	want := cachetest.Response(1, 2)
	if !ok || stored.UnixMilli() != 5 || !slices.Equal(resp.Params, want.Params) || len(resp.Outputs) != 2 || string(resp.Outputs[1].Data) != string(want.Outputs[1].Data) {
		t.Errorf("got %+v, %v, %v", resp, stored, ok)
	}
	for i := range b {
		b[i] ^= 0x10
		if _, _, ok := decode(b, &key); ok {
			t.Errorf("byte %d changed, and the value was taken", i)
		}
		b[i] ^= 0x10
	}
}

// pems writes a certificate of the loopback address, its own root, and its key.
func pems(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Redis over TLS that wants a client's certificate.
func TestTLS(t *testing.T) {
	cert, key := pems(t)
	port := redistest.FreePort(t)
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "yes")
	sub := cachetest.Subject("m", "1", 1)
	for _, roots := range []TLS{{CACert: cert}, {CACertDir: filepath.Dir(cert)}} {
		_, r := rig(t, port, func(c *Config) {
			c.TLS = roots
			c.TLS.Enabled, c.TLS.Cert, c.TLS.Key = true, cert, key
		})
		r.Insert(sub, cachetest.Request(1), cachetest.Response(1))
		r.Arrives(t, sub, cachetest.Request(1))
	}
	for name, bad := range map[string]TLS{"plain text": {}, "without a certificate": {Enabled: true, CACert: cert},
		"without the root": {Enabled: true, Cert: cert, Key: key}, "another name": {Enabled: true, Cert: cert, Key: key, CACert: cert, SNI: "redis.example"}} {
		_, r := rig(t, port, func(c *Config) { c.TLS = bad })
		if e := r.Lookup(t.Context(), sub, cachetest.Request(1)); e != nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
	cfg := Config{Host: "127.0.0.1", Port: port, TLS: TLS{Enabled: true, CACert: key}}
	if _, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler)); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("a file without a certificate: %v", err)
	}
}

// What a lookup brings from Redis to this process's own level is overtaken by a purge as
// an answer of the model is, also by one that was under way when the lookup began.
func TestPurgeOvertakesPromotion(t *testing.T) {
	s := redistest.Start(t)
	for name, during := range map[string]bool{"begins behind the lookup": false, "is under way": true} {
		t.Run(name, func(t *testing.T) {
			shared := open(t, s.Port, func(c *Config) { c.Prefix = t.Name() + ":" })
			var step *cache.Step
			purge := func() {
				if _, err := step.Purge(t.Context(), cache.Selector{Model: "m"}); err != nil {
					t.Error(err)
				}
			}
			own := &cachetest.Before{Level: local.New(local.Config{Size: 1 << 20}), Insertion: func() {}}
			slow := &held{Level: shared, found: func() {}, purged: func() {}}
			step = cache.NewStep(cache.Tiers{own, slow}, nil)
			run := &cachetest.Echo{Subject: cachetest.Subject("m", "1", 1), Says: func() byte { return 1 }}
			(&cachetest.Rig{Level: shared, Keys: cache.NewKeys()}).Insert(run.Subject, cachetest.Request(1), cachetest.Response(7))
			(&cachetest.Rig{Level: shared, Keys: cache.NewKeys()}).Arrives(t, run.Subject, cachetest.Request(1))
			if during {
				// The purge stands before Redis until the answer was found there, and the lookup
				// stands until the purge is over.
				begun, got, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
				slow.purged = func() { close(begun); <-got }
				slow.found = func() { close(got); <-over }
				go func() { defer close(over); purge() }()
				<-begun
			} else {
				own.Insertion = purge
			}
			if got, status := run.Ask(t, step, cachetest.Request(1)); got != 7 || status != infer.CacheHit {
				t.Fatalf("got %d, %v", got, status)
			}
			own.Insertion, slow.found = func() {}, func() {}
			if got, status := run.Ask(t, step, cachetest.Request(1)); got != 1 || status != infer.CacheMiss {
				t.Errorf("after the purge: got %d, %v", got, status)
			}
		})
	}
}

// held is a level that does something when it has found an entry, and before a purge.
type held struct {
	cache.Level
	found, purged func()
}

func (h *held) Lookup(ctx context.Context, q *cache.Query) *cache.Entry {
	e := h.Level.Lookup(ctx, q)
	if e != nil {
		h.found()
	}
	return e
}

func (h *held) Purge(ctx context.Context, s cache.Selector) (int64, error) {
	h.purged()
	return h.Level.Purge(ctx, s)
}

// TestPurgeLeavesOthers: a purge removes answers alone, also where limits and other programs keep
// something under the same prefix.
func TestPurgeLeavesOthers(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, nil)
	hash := strings.Repeat("0123456789abcdef", 4)
	others := []string{"sluice:limit:r:requests:p:m:", "sluice:limit:r:requests:p:m:fe80::1", "sluice:a:b:c:d",
		"sluice:m:1::" + hash[1:], "sluice:m:1::x" + hash[1:], "sluice:limit/2:{sluice:limit:r:requests:p:m:}",
		"sluice:m:1:" + hash}
	for _, name := range others {
		if err := c.client.HSet(t.Context(), name, "t", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	sub := cachetest.Subject("m", "1", 1)
	r.Insert(sub, cachetest.Request(1), cachetest.Response(1))
	for end := time.Now().Add(time.Minute); r.Lookup(t.Context(), sub, cachetest.Request(1)) == nil; wait(t, time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the answer is not kept")
		}
	}
	for _, sel := range []cache.Selector{{Model: "limit"}, {Model: "m"}, {}} {
		if _, err := c.Purge(t.Context(), sel); err != nil {
			t.Fatal(err)
		}
	}
	if r.Lookup(t.Context(), sub, cachetest.Request(1)) != nil {
		t.Error("the answer is still there")
	}
	for _, name := range others {
		if n := c.client.Exists(t.Context(), name).Val(); n != 1 {
			t.Errorf("%s was purged", name)
		}
	}
}
