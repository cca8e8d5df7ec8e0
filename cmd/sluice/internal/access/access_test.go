package access

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	var out, secret strings.Builder
	if err := Keys([]string{"new", "alice", "--tenant", "blue", "--groups=ops,dev"}, &out, &secret); err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(secret.String())
	if !strings.HasPrefix(key, "sluice_") || strings.Contains(out.String(), key) || len(key) != len("sluice_")+43 {
		t.Errorf("the key %q, the line %q", key, out.String())
	}
	if !strings.HasPrefix(out.String(), "alice sha256:") || !strings.HasSuffix(out.String(), " tenant=blue groups=ops,dev\n") {
		t.Errorf("the line %q", out.String())
	}
	for _, args := range [][]string{{"new"}, {"new", "jwt:alice"}, {"old", "x"}, {"new", "a", "--tenant", "a b"}, {"new", "a", "--x"}} {
		if err := Keys(args, &out, &secret); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules:\n- {principals: alice, actions: infer, models: 'a*'}\n- {groups: ops, actions: control}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args   []string
		denied bool
		want   string
	}{
		{nil, false, "good"},
		{[]string{"--as", "alice", "--action", "infer", "--model", "abc"}, false, "allowed by the rule in line 2"},
		{[]string{"--as", "alice", "--action", "infer", "--model", "b"}, true, "inference: denied"},
		{[]string{"--action", "infer", "--model", "abc"}, true, "inference: denied"},
		{[]string{"--as", "bob", "--groups", "dev,ops", "--action", "control"}, false, "line 3"},
	} {
		var out strings.Builder
		err := Policy(append([]string{"check", file}, row.args...), &out)
		if errors.Is(err, ErrDenied) != row.denied || err != nil && !row.denied || !strings.Contains(out.String(), row.want) {
			t.Errorf("%q: %q, %v; want %q, denied %t", row.args, out.String(), err, row.want, row.denied)
		}
	}
	for _, text := range []string{"", "# rules\n", "{}\n", "rules:\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Policy([]string{"check", file}, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "the file says nothing") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := Policy([]string{"check", file, "--action", "inferr"}, &strings.Builder{}); err == nil || errors.Is(err, ErrDenied) {
		t.Errorf("an action that there is not: %v", err)
	}
}
