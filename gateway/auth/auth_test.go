package auth

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// files writes files into a folder of the test's own, and gives its path.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range contents {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

var discard = slog.New(slog.DiscardHandler)

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := writeFile(name, text); err != nil {
		t.Fatal(err)
	}
}

func newAuth(t *testing.T, cfg Config) *Auth {
	t.Helper()
	a, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var (
	loopback = netip.MustParseAddrPort("127.0.0.1:40000")
	distant  = netip.MustParseAddrPort("192.0.2.7:40000")
	envoy    = netip.MustParseAddrPort("10.1.2.3:40000")
)

// call is an inference over HTTP with these headers.
func call(from netip.AddrPort, headers ...string) *infer.Envelope {
	h := map[string]string{}
	for i := 0; i < len(headers); i += 2 {
		h[strings.ToLower(headers[i])] = headers[i+1]
	}
	return &infer.Envelope{Protocol: "http", Method: "POST", Action: infer.ActionInference, Model: "m", Remote: from,
		Header: func(key string) string { return h[strings.ToLower(key)] }}
}

// newKey makes a key and its line.
func newKey(t *testing.T, name, tenant string, groups ...string) (key, line string) {
	t.Helper()
	key, line, err := NewKey(name, tenant, groups)
	if err != nil {
		t.Fatal(err)
	}
	return key, line + "\n"
}

func TestAPIKeys(t *testing.T) {
	alice, aliceLine := newKey(t, "alice", "blue", "ops", "dev")
	second, secondLine := newKey(t, "alice", "blue", "ops", "dev")
	old, oldLine := newKey(t, "bob", "")
	dir := files(t, map[string]string{"keys": "# ours\n\n" + aliceLine + secondLine + strings.TrimSpace(oldLine) + " expires=2020-01-01\n"})
	a := newAuth(t, Config{APIKeys: filepath.Join(dir, "keys")})
	for _, row := range []struct {
		name, header, value, want string
	}{
		{"bearer", "Authorization", "Bearer " + alice, "alice"},
		{"scheme in another case", "Authorization", "bEARER  " + alice, "alice"},
		{"x-api-key", "X-Api-Key", alice, "alice"},
		{"a second key", "X-Api-Key", second, "alice"},
		{"nothing", "X-Other", "1", ""},
		{"another scheme", "Authorization", "Basic " + alice, ""},
		{"wrong", "X-Api-Key", alice + "x", "!"},
		{"empty bearer", "Authorization", "Bearer ", "!"},
		{"a digest is no key", "X-Api-Key", strings.TrimPrefix(strings.Fields(aliceLine)[1], "sha256:"), "!"},
		{"expired", "X-Api-Key", old, "!"},
	} {
		t.Run(row.name, func(t *testing.T) {
			env := call(distant, row.header, row.value)
			err := a.Open(t.Context(), env)
			if row.want == "!" {
				if err == nil || infer.CodeOf(err) != infer.Unauthenticated {
					t.Fatalf("got %v, want Unauthenticated", err)
				}
				if strings.Contains(err.Error(), alice) || strings.Contains(err.Error(), old) {
					t.Errorf("the error has the key: %v", err)
				}
				return
			}
			if err != nil || env.Principal.Name != row.want {
				t.Fatalf("got %+v, %v, want %q", env.Principal, err, row.want)
			}
			if row.want == "alice" && (env.Principal.Tenant != "blue" || len(env.Principal.Groups) != 2 || env.Principal.Method != "api-key") {
				t.Errorf("got %+v", env.Principal)
			}
		})
	}
}

func TestKeyFileFaults(t *testing.T) {
	_, line := newKey(t, "alice", "")
	line = strings.TrimSpace(line)
	digest := strings.Repeat("ab", 32)
	for _, row := range []struct{ name, text, want string }{
		{"no digest", "alice", "f:1: 'alice' has no digest"},
		{"a key in place of its digest", "\nalice sluice_secret", "f:2: the digest of 'alice' is not sha256: and 64"},
		{"short", "alice sha256:abcd", "64 hexadecimal"},
		{"long", line + "00", "64 hexadecimal"},
		{"name of a token", "jwt:alice sha256:" + digest, "no name of a key"},
		{"a word", "anonymous sha256:" + digest, "a word of the policy"},
		{"unknown part", line + " tenent=x", "'tenent' is not tenant="},
		{"empty tenant", line + " tenant=", "with a value"},
		{"end", line + " expires=soon", "'soon' is neither a day"},
		{"twice", line + "\n" + line, "f:2: the key of 'alice' is in a line above"},
		{"another tenant", line + "\nalice sha256:" + digest + " tenant=t", "f:2: 'alice' has another tenant"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := parseKeys("f", []byte(row.text))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the key: %v", err)
			}
		})
	}
}

// certificate is one with these names, as a transport would have verified it.
func certificate(uris, dns []string, cn string) *x509.Certificate {
	c := &x509.Certificate{DNSNames: dns, NotAfter: time.Now().Add(time.Hour),
		Raw: []byte(strings.Join(uris, " ") + "|" + strings.Join(dns, " ") + "|" + cn)}
	if cn != "" {
		c.Subject = pkix.Name{CommonName: cn, Names: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: cn}}}
	}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err == nil {
			c.URIs = append(c.URIs, parsed)
		}
	}
	return c
}

const identityYAML = `certificates: {names: [spiffe, dns, cn]}
proxies:
  trusted: [10.0.0.0/8, unix, "spiffe://mesh/envoy"]
  proof-key: signing
principals:
  - {names: ["spiffe://mesh/ns/prod/*"], tenant: prod, groups: apps}
`

func TestCertificatesAndForwarding(t *testing.T) {
	dir := files(t, map[string]string{"id.yaml": identityYAML, "signing": strings.Repeat("k", 40)})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	signed, err := a.Sign(&infer.Principal{Name: "jwt:carol", Tenant: "t", Groups: []string{"g"}, Method: "jwt"})
	if err != nil || signed == "" {
		t.Fatal(signed, err)
	}
	app, mesh := certificate([]string{"spiffe://mesh/ns/prod/app"}, nil, "x"), certificate([]string{"spiffe://mesh/envoy"}, nil, "")
	const forwarded = `By=spiffe://mesh/envoy;Hash=ab;Subject="CN=a\,b,O=c";URI=spiffe://mesh/ns/prod/web`
	for _, row := range []struct {
		name    string
		from    netip.AddrPort
		cert    *x509.Certificate
		headers []string
		want    string // "!": an error
	}{
		{"SPIFFE", distant, app, nil, "spiffe://mesh/ns/prod/app"},
		{"two URIs prove nothing; DNS", distant, certificate([]string{"spiffe://a/b", "spiffe://a/c"}, []string{"app.example"}, ""), nil, "dns:app.example"},
		{"CN", distant, certificate(nil, nil, "app"), nil, "cn:app"},
		{"no name", distant, certificate(nil, nil, ""), nil, ""},
		{"forwarded by Envoy", envoy, nil, []string{"X-Forwarded-Client-Cert", forwarded}, "spiffe://mesh/ns/prod/web"},
		{"forwarded by nobody", distant, nil, []string{"X-Forwarded-Client-Cert", forwarded}, ""},
		{"forwarded by an application", distant, app, []string{"X-Forwarded-Client-Cert", forwarded}, "spiffe://mesh/ns/prod/app"},
		{"forwarded by Envoy's certificate", distant, mesh, []string{"X-Forwarded-Client-Cert", forwarded}, "spiffe://mesh/ns/prod/web"},
		{"Envoy's own certificate names no caller", distant, mesh, nil, ""},
		{"appended: the last counts", envoy, nil, []string{"X-Forwarded-Client-Cert", "URI=spiffe://mesh/admin," + forwarded}, "spiffe://mesh/ns/prod/web"},
		{"a CN", envoy, nil, []string{"X-Forwarded-Client-Cert", `Hash=ab;Subject="O=x,CN=admin"`}, "cn:admin"},
		{"an organization that looks like a CN", envoy, nil, []string{"X-Forwarded-Client-Cert", `Hash=ab;Subject="O=x\,CN=admin"`}, ""},
		{"the same with quotes", envoy, nil, []string{"X-Forwarded-Client-Cert", `Hash=ab;Subject="O=x\"\,CN=admin"`}, ""},
		{"malformed", envoy, nil, []string{"X-Forwarded-Client-Cert", `URI="spiffe`}, "!"},
		{"signed", envoy, nil, []string{"X-Sluice-Proof", signed}, "jwt:carol"},
		{"signed, by nobody trusted", distant, nil, []string{"X-Sluice-Proof", signed}, ""},
		{"forged", envoy, nil, []string{"X-Sluice-Proof", signed[:len(signed)-1]}, "!"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for range 2 { // the second time from memory
				env := call(row.from, row.headers...)
				env.Certificate = row.cert
				err := a.Open(t.Context(), env)
				if row.want == "!" {
					if err == nil || infer.CodeOf(err) != infer.Unauthenticated {
						t.Fatalf("got %v, want Unauthenticated", err)
					}
					continue
				}
				if err != nil || env.Principal.Name != row.want {
					t.Fatalf("got %+v, %v, want %q", env.Principal, err, row.want)
				}
				prod := strings.Contains(row.want, "/prod/")
				if prod && (env.Principal.Tenant != "prod" || len(env.Principal.Groups) != 1) {
					t.Errorf("got %+v, want tenant prod and one group", env.Principal)
				}
			}
		})
	}
}

func TestSignedPrincipalEnds(t *testing.T) {
	dir := files(t, map[string]string{"id.yaml": identityYAML, "signing": strings.Repeat("k", 40)})
	a := newAuth(t, Config{Identity: filepath.Join(dir, "id.yaml")})
	signed, err := a.Sign(&infer.Principal{Name: "carol"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, row := range []struct {
		after time.Duration
		ok    bool
	}{{0, true}, {signedTime - 2*time.Second, true}, {signedTime + time.Second, false}} {
		a.now = func() time.Time { return now.Add(row.after) }
		if err := a.Open(t.Context(), call(envoy, ProofHeader, signed)); (err == nil) != row.ok {
			t.Errorf("after %v: %v, want ok %t", row.after, err, row.ok)
		}
	}
}

func TestWithoutPolicy(t *testing.T) {
	control := func(from netip.AddrPort, headers ...string) *infer.Envelope {
		env := call(from, headers...)
		env.Action, env.Change = infer.ActionModelRepository, true
		return env
	}
	unix := control(netip.AddrPort{})
	unix.Unix = true
	index := control(distant)
	index.Change = false
	rows := []struct {
		name string
		env  *infer.Envelope
		ok   bool
	}{
		{"inference from afar", call(distant), true},
		{"index from afar", index, true},
		{"control from here", control(loopback), true},
		{"control from here, mapped into IPv6", control(netip.MustParseAddrPort("[::ffff:127.0.0.1]:1")), true},
		{"control over IPv6", control(netip.MustParseAddrPort("[::1]:1")), true},
		{"control over a Unix socket", unix, true},
		{"control from afar", control(distant), false},
		{"from nowhere", control(netip.AddrPort{}), false},
		{"through Envoy on this host", control(loopback, "X-Forwarded-Proto", "http"), false},
		{"through another proxy on this host", control(loopback, "X-Forwarded-For", "192.0.2.1"), false},
		{"of a page in a browser on this host", control(loopback, "Origin", "http://evil.example"), false},
	}
	closed, open := newAuth(t, Config{}), newAuth(t, Config{AllowRemoteControl: true})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			err := closed.Open(t.Context(), row.env)
			if (err == nil) != row.ok || err != nil && (infer.CodeOf(err) != infer.PermissionDenied || infer.ReasonOf(err) != infer.ReasonNotLocal) {
				t.Errorf("got %v, want ok %t", err, row.ok)
			}
			if err := open.Open(t.Context(), row.env); err != nil {
				t.Errorf("with AllowRemoteControl: %v", err)
			}
		})
	}
}

// Calls about shared memory are those of this host, unless a flag says otherwise, whatever
// a policy gives.
func TestClientMemory(t *testing.T) {
	memory := func(from netip.AddrPort, headers ...string) *infer.Envelope {
		env := call(from, headers...)
		env.Action = infer.ActionSharedMemory
		return env
	}
	unix := memory(netip.AddrPort{})
	unix.Unix = true
	for _, row := range []struct {
		name  string
		env   *infer.Envelope
		local bool
	}{
		{"from here", memory(loopback), true},
		{"over a Unix socket", unix, true},
		{"from afar", memory(distant), false},
		{"through a proxy on this host", memory(loopback, "X-Forwarded-For", "192.0.2.1"), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, c := range []struct {
				cfg Config
				ok  bool
			}{
				{Config{}, row.local}, {Config{AllowRemoteControl: true}, row.local},
				{Config{ClientMemory: ClientMemoryNone}, false}, {Config{ClientMemory: ClientMemoryAll}, true},
			} {
				err := newAuth(t, c.cfg).Open(t.Context(), row.env)
				if (err == nil) != c.ok {
					t.Errorf("%+v: got %v, want ok %t", c.cfg, err, c.ok)
				}
				if err != nil && (infer.CodeOf(err) != infer.Unsupported || !strings.Contains(err.Error(), "--allow-client-shm=true")) {
					t.Errorf("%+v: got %v", c.cfg, err)
				}
			}
		})
	}
}

// Whoever is trusted to speak for others speaks for others: its word on shared memory would
// be that of callers who are elsewhere, whichever headers it leaves out.
func TestClientMemoryOfProxies(t *testing.T) {
	dir := files(t, map[string]string{"id": "proxies: {trusted: [127.0.0.1, \"cn:envoy\"]}\n", "unix": "proxies: {trusted: unix}\n"})
	for _, row := range []struct {
		name, file string
		unix       bool
		remote     netip.AddrPort
		cert       *x509.Certificate
		ok         bool
	}{
		{"a trusted address", "id", false, loopback, nil, false},
		{"a trusted socket", "unix", true, netip.AddrPort{}, nil, false},
		{"a trusted certificate", "id", true, netip.AddrPort{}, &x509.Certificate{Subject: pkix.Name{CommonName: "envoy"}}, false},
		{"another certificate", "id", true, netip.AddrPort{}, &x509.Certificate{Subject: pkix.Name{CommonName: "client"}}, true},
		{"another socket", "id", true, netip.AddrPort{}, nil, true},
		{"another address", "unix", false, loopback, nil, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, c := range []struct {
				memory ClientMemory
				ok     bool
			}{{ClientMemoryLocal, row.ok}, {ClientMemoryAll, true}} {
				env := call(row.remote)
				env.Action, env.Unix, env.Certificate = infer.ActionSharedMemory, row.unix, row.cert
				a := newAuth(t, Config{Identity: filepath.Join(dir, row.file), ClientMemory: c.memory})
				if err := a.Open(t.Context(), env); (err == nil) != c.ok {
					t.Errorf("%d: got %v, want ok %t", c.memory, err, c.ok)
				}
				if got := a.Local(env); got != row.ok {
					t.Errorf("local: got %t, want %t", got, row.ok)
				}
			}
		})
	}
}

func TestRestricted(t *testing.T) {
	dir := files(t, map[string]string{"value": "from-a-file\n"})
	var all []Restriction
	for _, text := range []string{"health,inference:Key=open=sesame", "model-repository:admin=@" + filepath.Join(dir, "value")} {
		r, err := ParseRestriction("http-restricted-api", "api", text, all)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	a := newAuth(t, Config{HTTP: all, GRPC: all})
	for _, row := range []struct {
		name, protocol, header, value string
		action                        infer.Action
		want                          string
	}{
		{"without", "http", "", "", infer.ActionInference, "This API is restricted, expecting header 'Key'"},
		{"wrong", "http", "Key", "open=sesame2", infer.ActionInference, "This API is restricted, expecting header 'Key'"},
		{"right", "http", "Key", "open=sesame", infer.ActionInference, ""},
		{"of another category", "http", "", "", infer.ActionMetadata, ""},
		{"health too", "http", "", "", infer.ActionHealth, "This API is restricted, expecting header 'Key'"},
		{"gRPC without", "grpc", "key", "open=sesame", infer.ActionInference, "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"},
		{"gRPC right", "grpc", "triton-grpc-protocol-key", "open=sesame", infer.ActionInference, ""},
		{"control from afar by its header", "http", "admin", "from-a-file", infer.ActionModelRepository, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			env := call(distant, row.header, row.value)
			env.Protocol, env.Action, env.Change = row.protocol, row.action, true
			err := a.Open(t.Context(), env)
			if row.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			code := infer.PermissionDenied
			if row.protocol == "grpc" {
				code = infer.Unavailable
			}
			if err == nil || err.Error() != row.want || infer.CodeOf(err) != code {
				t.Errorf("got %v, want %v %q", err, code, row.want)
			}
		})
	}
}

func TestParseRestriction(t *testing.T) {
	before := []Restriction{{Actions: []infer.Action{infer.ActionHealth}, Key: "k", Value: "v"}}
	for text, want := range map[string]string{
		"metadata,trace:k=v":  "",
		"metadata:a:k=v":      "",
		"foo:k=v":             "unknown restricted api 'foo'",
		"Metadata:k=v":        "unknown restricted api 'Metadata'",
		"metrics:k=v":         "unknown restricted api 'metrics'",
		"metadata,:k=v":       "unknown restricted api ''",
		"trace, metadata:k=v": "unknown restricted api ' metadata'",
		"trace,trace:k=v":     "restricted api 'trace' can not be specified in multiple config groups",
		"health:k=v":          "restricted api 'health' can not be specified in multiple config groups",
		"trace":               "--f option format is '<config name>:<setting>=<value>'. Got trace",
		"trace:k":             "--f option format is '<config name>:<setting>=<value>'. Got trace:k",
		"trace:k=":            "--f option format is '<config name>:<setting>=<value>'. Got trace:k=…",
		":k=secret":           "--f option format is '<config name>:<setting>=<value>'. Got :k=…",
	} {
		r, err := ParseRestriction("f", "api", text, before)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
		if strings.Contains(r.String(), "v") && want == "" && strings.Contains(r.String(), "=v") {
			t.Errorf("%s shows its value: %s", text, r)
		}
	}
}

func TestReload(t *testing.T) {
	first, firstLine := newKey(t, "first", "")
	second, secondLine := newKey(t, "second", "")
	dir := files(t, map[string]string{"keys": firstLine, "policy": "rules:\n- {principals: [first], actions: infer}\n"})
	a := newAuth(t, Config{APIKeys: filepath.Join(dir, "keys"), Policy: filepath.Join(dir, "policy")})
	a.deps.Log = slog.New(slog.DiscardHandler)
	ask := func(key string) infer.Code {
		if err := a.Open(context.Background(), call(distant, "X-Api-Key", key)); err != nil {
			return infer.CodeOf(err)
		}
		return infer.Unknown // none
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		settle := func() { time.Sleep(3 * configfile.Period); synctest.Wait() }
		check := func(when string, key string, want infer.Code) {
			t.Helper()
			if got := ask(key); got != want {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		check("at first", first, infer.Unknown)
		check("at first", second, infer.Unauthenticated)
		write(t, filepath.Join(dir, "policy"), "rules:\n- {principals: [second], actions: infer}\n")
		settle()
		check("another policy", first, infer.PermissionDenied)
		write(t, filepath.Join(dir, "keys"), firstLine+secondLine)
		settle()
		check("another key", second, infer.Unknown)
		write(t, filepath.Join(dir, "policy"), "rules:\n- {principal: [nobody], actions: infer}\n")
		settle()
		check("a bad policy", second, infer.Unknown)
		write(t, filepath.Join(dir, "keys"), secondLine+"#\n") // while the policy is bad, nothing changes
		settle()
		check("a bad policy and other keys", first, infer.PermissionDenied)
		write(t, filepath.Join(dir, "policy"), "rules:\n- {principals: [first, second], actions: [infer]}\n")
		settle()
		check("a good policy again", second, infer.Unknown)
		check("a good policy again", first, infer.Unauthenticated)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestTimeOfHealth(t *testing.T) {
	dir := files(t, map[string]string{"open": "rules:\n- {principals: [x], actions: infer}\n",
		"closed": "health: closed\nrules:\n- {principals: [x], actions: infer}\n", "keys": "no keys\n"})
	for name, ok := range map[string]bool{"open": true, "closed": false} {
		a := newAuth(t, Config{Policy: filepath.Join(dir, name), APIKeys: filepath.Join(dir, "keys")})
		for _, key := range []string{"", "wrong"} {
			env := call(distant, "X-Api-Key", key)
			env.Action = infer.ActionHealth
			if err := a.Open(t.Context(), env); (err == nil) != ok {
				t.Errorf("health %s with the key %q: %v", name, key, err)
			}
		}
	}
}
