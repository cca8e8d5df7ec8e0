package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-serve/sluice/infer"
)

func FuzzForwarded(f *testing.F) {
	for _, s := range []string{`By=spiffe://a/b;Hash=00;Subject="CN=a\,b,O=c";URI=spiffe://a/c;DNS=x;DNS=y`, `URI=a,URI=b`, `Subject="/CN=a"`, `=`, `a="\`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		p, err := parseForwarded(header)
		if err != nil {
			return
		}
		if name := p.name([]string{nameSPIFFE, nameDNS, nameCN}); name != "" && (!printable(name) || !strings.Contains(name, ":")) {
			t.Errorf("%q gives the name %q", header, name)
		}
		// what comes before an element does not change what it says
		again, err := parseForwarded("URI=spiffe://mesh/admin," + header)
		if err != nil || strings.Join(again.uris, " ") != strings.Join(p.uris, " ") || again.cn != p.cn {
			t.Errorf("%q: %+v behind another element, %v; alone %+v", header, again, err, p)
		}
	})
}

// FuzzCredentials: whatever is shown, nobody is found who was not proved, and no error
// repeats it.
func FuzzCredentials(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	_, line, err := NewKey("alice", "", nil)
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	id := &identity{on: true, trusted: peers{unix: true}, signing: []byte(strings.Repeat("k", 40)),
		issuers: []*issuer{{audience: []string{"sluice"}, claims: claimNames{name: "sub", prefix: "jwt:"},
			static: []verifyKey{{algs: []string{"ES256"}, key: key.Public()}}}}}
	if id.keys, err = parseKeys(filepath.Join(dir, "keys"), []byte(line)); err != nil {
		f.Fatal(err)
	}
	good := signer{jwt.SigningMethodES256, key, "k"}.token(f, claims())
	parts := strings.Split(good, ".")
	f.Add("Bearer "+parts[0]+"."+parts[1]+"."+strings.Repeat("A", 86), "", "", true)
	f.Add("Bearer "+strings.Fields(line)[1], "x", "v1.e30.AAAA", true)
	f.Add("bearer ..", "", "v1.", false)
	f.Fuzz(func(t *testing.T, bearer, apiKey, signed string, unix bool) {
		if strings.Contains(bearer, good) {
			return
		}
		a := &Auth{now: time.Now, proved: newRemembered(16)}
		env := &infer.Envelope{Protocol: "http", Unix: unix, Header: func(name string) string {
			return map[string]string{"Authorization": bearer, "X-Api-Key": apiKey, "X-Sluice-Proof": signed}[name]
		}}
		p, err := a.identify(asking{identity: id}, env)
		if err == nil && p.Name != "" {
			t.Errorf("%q, %q, %q prove %+v", bearer, apiKey, signed, p)
		}
		for _, secret := range []string{bearer, apiKey, signed} {
			if err != nil && len(secret) > 24 && strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats %q", secret)
			}
		}
	})
}

func FuzzPolicy(f *testing.F) {
	f.Add(policyYAML, "alice", "bert")
	f.Add("rules:\n- {principals: '*', actions: admin}\n", "x", "")
	f.Add("a: &a [*a]", "", "")
	f.Fuzz(func(t *testing.T, text, name, model string) {
		p, err := ParsePolicy("p", []byte(text))
		if err != nil {
			return
		}
		if p.allows(nobody, RightControl, model) && !strings.Contains(text, anonymous) {
			t.Errorf("nobody has control by %q", text)
		}
		who := &infer.Principal{Name: name}
		for _, n := range rightNames {
			if n.right&(n.right-1) == 0 && p.allows(who, n.right, model) && p.find(who, allRights, model) == nil && n.right != RightHealth {
				t.Errorf("%s is given and no rule gives it", n.name)
			}
		}
	})
}

func FuzzKeyFile(f *testing.F) {
	_, line, err := NewKey("alice", "t", []string{"a", "b"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add("# x\n\nalice sha256:00 expires=2020-01-01")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseKeys("f", []byte(text))
		if err != nil {
			return
		}
		for _, list := range all {
			for _, k := range list {
				if checkKeyName(k.principal.Name) != nil {
					t.Errorf("the name %q", k.principal.Name)
				}
			}
		}
	})
}
