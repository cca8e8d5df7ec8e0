package regions

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// Whose files a caller may have read and written.
func TestMayUse(t *testing.T) {
	const owner, other, root = 1000, 1001, 0
	known := func(uid uint32) user { return user{near: true, known: true, uid: uid} }
	for _, c := range []struct {
		name     string
		who      user
		uid      uint32
		mode     uint32
		links    uint64
		reserved bool
		want     bool
	}{
		{"its owner", known(owner), owner, 0o600, 1, false, true},
		{"its owner, who could change the mode", known(owner), owner, 0o400, 1, false, true},
		{"root", known(root), owner, 0o600, 1, false, true},
		{"another user", known(other), owner, 0o600, 1, false, false},
		{"another user, of root's", known(other), root, 0o600, 1, false, false},
		{"another user, mode of a group", known(other), owner, 0o660, 1, false, false},
		{"another user, readable", known(other), owner, 0o644, 1, false, false},
		{"another user, writable alone", known(other), owner, 0o602, 1, false, false},
		{"another user, everybody's", known(other), owner, 0o666, 1, false, true},
		{"another user, a reserved name", known(other), owner, 0o600, 1, true, false},
		{"nobody, of root's", user{near: true}, root, 0o600, 1, false, false},
		{"nobody, everybody's", user{near: true}, owner, 0o606, 1, false, true},
		{"nobody, a memfd", user{near: true, unix: true}, owner, 0o777, 0, false, true},
		{"nobody, a reserved name", user{near: true}, owner, 0o600, 1, true, true},
		{"nobody, a reserved name that was unlinked", user{near: true}, owner, 0o600, 0, true, true},
		{"nobody, a reserved name beside another", user{near: true}, owner, 0o600, 2, true, false},
		{"elsewhere", user{}, owner, 0o600, 1, false, false},
		{"elsewhere, a reserved name", user{}, owner, 0o600, 1, true, true},
		{"an owner who is not known is not root", user{near: true, uid: 0}, owner, 0o600, 1, false, false},
	} {
		if got := mayUse(c.who, &file{uid: c.uid, mode: c.mode, links: c.links}, c.reserved); got != c.want {
			t.Errorf("%s: got %t", c.name, got)
		}
	}
}

func TestPrefixFor(t *testing.T) {
	for _, c := range []struct {
		prefix, principal, want string
		ok                      bool
	}{
		{"app_", "", "app_", true},
		{"/app_", "alice", "app_", true},
		{"{principal}_", "alice", "alice_", true},
		{"/shm_{principal}_x", "alice", "shm_alice_x", true},
		{"shm_{principal}_", "", "", false},
		{"shm_{principal}_", "alice_b", "shm_alice%5Fb_", true},
		{"shm_{principal}_", "spiffe://mesh/ns/prod", "shm_spiffe:%2F%2Fmesh%2Fns%2Fprod_", true},
		{"shm_{principal}_", "jwt:a.b@c-d", "shm_jwt:a.b@c-d_", true},
		{"shm_{principal}_", "100%", "shm_100%25_", true},
		{"shm_{principal}_", "\x00\xffé{principal}", "shm_%00%FF%C3%A9%7Bprincipal%7D_", true},
	} {
		if got, ok := prefixFor(c.prefix, c.principal); ok != c.ok || ok && got != c.want {
			t.Errorf("%q for %q: got %q, %t; want %q, %t", c.prefix, c.principal, got, ok, c.want, c.ok)
		}
	}
}

// Names that differ get keys of which none begins as another's do.
func FuzzPrefix(f *testing.F) {
	f.Add("a", "a_")
	f.Add("a", "a%5F")
	f.Add("spiffe://a", "spiffe:%2F/a")
	f.Add("", "\xff")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, one := prefixFor("{principal}_", a)
		y, two := prefixFor("{principal}_", b)
		if strings.ContainsAny(x+y, "/\x00") {
			t.Errorf("%q and %q have a character of no name", x, y)
		}
		if one && two && a != b && (strings.HasPrefix(x, y) || strings.HasPrefix(y, x)) {
			t.Errorf("%q and %q: one of %q and %q begins the other", a, b, x, y)
		}
	})
}

func TestPrefixes(t *testing.T) {
	for _, c := range []struct {
		all  string
		want string // part of the error; "": none
	}{
		{"app_", ""},
		{"app_ app_", ""},
		{"app_ other", ""},
		{"app_ shm_{principal}_", ""},
		{"{principal}_", ""},
		{"shm_{principal}_in shm_{principal}_in", ""},
		{"/", "is no beginning of a name"},
		{"a/b", "is no beginning of a name"},
		{"{principal}_/b", "is no beginning of a name"},
		{"{principal}", "must stand a character that ends the principal's name"},
		{"a_{principal}x", "must stand a character that ends the principal's name"},
		{"a_{principal}.x", "must stand a character that ends the principal's name"},
		{"a_{principal}%", "must stand a character that ends the principal's name"},
		{"a_{principal}_{principal}_", "may stand in it once, and no other braces"},
		{"a_{tenant}_", "may stand in it once, and no other braces"},
		{"shm_ shm_{principal}_", "must differ from how any other prefix begins"},
		{"shm_alice_ shm_{principal}_", "must differ from how any other prefix begins"},
		{"x {principal}_", "must differ from how any other prefix begins"},
		{"a_{principal}_ a_b{principal}_", "must differ from how any other prefix begins"},
	} {
		err := (&Config{Prefixes: strings.Fields(c.all)}).Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.all, err, c.want)
		}
	}
}

// Of users that the namespace does not have the kernel gives one number for all.
func TestSharedUID(t *testing.T) {
	if s := readSharedUID(); s.uid == 0 {
		t.Errorf("got %+v", s)
	}
	for _, c := range []struct {
		uid  uint32
		want user
	}{{1000, user{near: true, known: true, uid: 1000}}, {65534, user{near: true, uid: 65534}}} {
		r := &Registry{local: func(*infer.Envelope) bool { return true }, shared: sharedUID{on: true, uid: 65534}}
		if got := r.user(&infer.Envelope{Peer: infer.Peer{Known: true, UID: c.uid}}); got != c.want {
			t.Errorf("%d: got %+v, want %+v", c.uid, got, c.want)
		}
	}
}
