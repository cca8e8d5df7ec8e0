package auth

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

const policyYAML = `# who may do what
rules:
- principals: [alice, "spiffe://mesh/ns/prod/*"]
  actions: [infer, read]
  models: ["resnet*", bert]
- groups: [ops]
  actions: [control, trace]
- groups: ops-?
  actions: control
  models: resnet50
- principals: [authenticated]
  actions: [metadata]
- principals: [anonymous]
  actions: [inference]
  models: demo
- principals: root
  actions: admin
`

var alice = &infer.Principal{Name: "alice", Method: "api-key"}

func TestPolicy(t *testing.T) {
	p, err := ParsePolicy("p.yaml", []byte(policyYAML))
	if err != nil {
		t.Fatal(err)
	}
	ops, ops1 := &infer.Principal{Name: "bob", Groups: []string{"dev", "ops"}}, &infer.Principal{Name: "bob", Groups: []string{"ops-1"}}
	for _, row := range []struct {
		name  string
		who   *infer.Principal
		right Right
		model string
		want  bool
	}{
		{"by name", alice, RightInference, "resnet50", true},
		{"another model", alice, RightInference, "gpt", false},
		{"a model that the message names", alice, RightInference, "", true},
		{"the index, which is filtered", alice, RightIndex, "", true},
		{"not control", alice, RightControl, "bert", false},
		{"SPIFFE", &infer.Principal{Name: "spiffe://mesh/ns/prod/a"}, RightInference, "bert", true},
		{"another name space", &infer.Principal{Name: "spiffe://mesh/ns/dev/a"}, RightInference, "bert", false},
		{"by group", ops, RightControl, "bert", true},
		{"by group, all models", ops, RightControl, "", true},
		{"trace of all", ops, RightTrace, "", true},
		{"by a pattern of groups", ops1, RightControl, "resnet50", true},
		{"one model is not all", ops1, RightControl, "", false},
		{"a known caller", ops1, RightMetadata, "x", true},
		{"nobody is not known", nobody, RightMetadata, "x", false},
		{"nobody", nobody, RightInference, "demo", true},
		{"no principal at all", nil, RightInference, "demo", true},
		{"a known caller is not anonymous", alice, RightInference, "demo", false},
		{"admin", &infer.Principal{Name: "root"}, RightMetrics, "", true},
		{"health is open", nobody, RightHealth, "", true},
		{"denied by default", alice, RightLogging, "", false},
	} {
		if got := p.allows(row.who, row.right, row.model); got != row.want {
			t.Errorf("%s: got %t, want %t", row.name, got, row.want)
		}
	}
}

func TestPolicyFaults(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"empty", "", "a policy without rules"},
		{"no YAML", "rules: [", "p.yaml: yaml: line 1"},
		{"a key of the policy", "rule:\n- {}\n", "p.yaml:1: the policy has no 'rule'; did you mean 'rules'?"},
		{"a key of a rule", "rules:\n- principal: [a]\n  actions: infer\n", "p.yaml:2: a rule has no 'principal'; did you mean 'principals'?"},
		{"an action", "rules:\n- principals: a\n  actions: [inferr]\n", "p.yaml:2: no action 'inferr'; did you mean 'infer'?"},
		{"an unlike action", "rules:\n- {principals: a, actions: [xyz]}\n", "no action 'xyz'; there are health, metadata"},
		{"nobody named", "rules:\n\n- actions: infer\n", "p.yaml:3: a rule needs principals or groups"},
		{"nothing given", "rules:\n- principals: a\n", "p.yaml:2: a rule needs actions"},
		{"of no one model", "rules:\n- {principals: a, actions: [infer, metrics], models: x}\n", "'metrics' has rights that are of no one model (metrics)"},
		{"admin of a model", "rules:\n- {principals: a, actions: admin, models: x}\n", "shared-memory, logging, metrics"},
		{"no list", "rules: {a: b}\n", "p.yaml:1: 'rules' is to be a list"},
		{"twice", "rules:\n- {principals: a, actions: infer, actions: read}\n", "'actions' is given twice"},
		{"an alias", "rules:\n- &r {principals: a, actions: infer}\n- *r\n", "p.yaml:3: aliases are not read here"},
		{"two documents", "rules:\n- {principals: a, actions: infer}\n---\nrules: []\n", "one document"},
		{"health", "health: maybe\nrules:\n- {principals: a, actions: infer}\n", "p.yaml:1: 'health' is open or closed"},
		{"an empty list", "rules:\n- {principals: [], actions: infer}\n", "'principals' is empty"},
		{"an empty name", "rules:\n- {principals: [''], actions: infer}\n", "'principals' is to be a text"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := ParsePolicy("p.yaml", []byte(row.text))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	p, err := ParsePolicy("p.yaml", []byte(policyYAML))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		action, model, want string
		allowed             bool
	}{
		{"infer", "bert", "inference: allowed by the rule in line 3\n", true},
		{"infer", "gpt", "inference: denied, no rule gives it\n", false},
		{"health", "", "health: allowed, health is open\n", true},
		{"read", "x", "metadata: allowed by the rule in line 11\nmodel-config: denied, no rule gives it\n" +
			"index: denied, no rule gives it\nstatistics: denied, no rule gives it\n", false},
	} {
		allowed, why, err := p.Explain(alice, row.action, row.model)
		if err != nil || allowed != row.allowed || why != row.want {
			t.Errorf("%s on %s: got %t, %q, %v; want %t, %q", row.action, row.model, allowed, why, err, row.allowed, row.want)
		}
	}
	if _, _, err := p.Explain(alice, "infre", ""); err == nil || !strings.Contains(err.Error(), "did you mean 'infer'") {
		t.Errorf("got %v", err)
	}
}

func TestGlob(t *testing.T) {
	for _, row := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"a*", "a", true}, {"a*", "abc", true}, {"*b", "aab", true}, {"*b", "aba", false},
		{"a*b*c", "axxbyyc", true}, {"a*b*c", "axxbyy", false}, {"?", "x", true}, {"?", "", false}, {"*", "", true}, {"a?c", "abc", true},
		{"**", "x", true}, {"*ab*ab", "abab", true}, {"*ab*ab", "ab", false}, {"", "", true}, {"", "x", false},
	} {
		g, err := newGlob(row.pattern)
		if err != nil || g.match(row.name) != row.want {
			t.Errorf("%q on %q: got %t, %v; want %t", row.pattern, row.name, !row.want, err, row.want)
		}
	}
	if _, err := newGlob(strings.Repeat("*a", 40)); err == nil {
		t.Error("a pattern of 40 stars is taken")
	}
}

func TestIdentityFaults(t *testing.T) {
	dir := files(t, map[string]string{"short": "too short", "good": strings.Repeat("s", 40)})
	for _, row := range []struct{ name, text, want string }{
		{"a key", "apikeys: x\n", "id.yaml:1: the identity file has no 'apikeys'; did you mean 'api-keys'?"},
		{"an issuer's key", "tokens:\n- {issuer: 'https://a', audiences: b}\n", ":2: an issuer of tokens has no 'audiences'; did you mean 'audience'?"},
		{"no audience", "tokens:\n- {issuer: 'https://a'}\n", ":2: an issuer needs an audience"},
		{"no keys", "tokens:\n- {audience: a}\n", "needs its 'issuer' (whose keys are discovered)"},
		{"plain HTTP", "tokens:\n- {audience: a, jwks: 'http://keys.example/k'}\n", "keys come over https"},
		{"no prefix", "tokens:\n- {audience: a, issuer: 'https://a', prefix: x}\n", "'prefix' is to have a colon"},
		{"a certificate's prefix", "tokens:\n- {audience: a, issuer: 'https://a', prefix: 'dns:'}\n", "not to begin with dns:"},
		{"algorithm none", "tokens:\n- {audience: a, issuer: 'https://a', algorithms: none}\n", "'none' is not one of RS256"},
		{"no such file", "tokens:\n- {audience: a, keys: missing.pem}\n", "missing.pem"},
		{"no key in it", "tokens:\n- {audience: a, keys: good}\n", "neither PEM blocks nor a JWK"},
		{"leeway", "tokens:\n- {audience: a, issuer: 'https://a', leeway: 1h}\n", "'leeway' is a duration up to 10m"},
		{"a kind of name", "certificates: {names: [email]}\n", "'email' is not one of spiffe, dns, cn"},
		{"everybody is trusted", "proxies: {trusted: 0.0.0.0/0}\n", "trusts everybody"},
		{"a peer", "proxies: {trusted: envoy}\n", "'envoy' is neither a network"},
		{"a weak key", "proxies: {trusted: unix, proof-key: short}\n", "a secret has 9 bytes, at least 32"},
		{"a key for nobody", "proxies: {proof-key: good}\n", "'proof-key' without 'trusted'"},
		{"a principal", "principals:\n- {tenant: x}\n", ":2: a principal needs names"},
	} {
		t.Run(row.name, func(t *testing.T) {
			write(t, dir+"/id.yaml", row.text)
			err := Config{Identity: dir + "/id.yaml"}.Validate()
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}
