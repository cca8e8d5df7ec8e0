package regions_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/regions/regionstest"
	"github.com/sluice-serve/sluice/infer"
)

// finder is an infer.UserFinder.
type finder struct {
	uid   uint32
	known bool
}

func (f finder) FindUser() (uid uint32, known bool) { return f.uid, f.known }

func tcp(principal string, f finder) *infer.Envelope {
	env := &infer.Envelope{Remote: netip.MustParseAddrPort("127.0.0.1:1"), Peer: infer.Peer{Finder: f}}
	if principal != "" {
		env.Principal = &infer.Principal{Name: principal}
	}
	return env
}

// A key gives a caller nothing that its user could not open without the server.
func TestForeignFile(t *testing.T) {
	me := uint32(os.Getuid())
	dir := folder(t)
	put(t, dir, "everybody", 0o666)
	put(t, dir, "shm_alice_x", 0o600)
	put(t, dir, "shm_mallory_x", 0o600)
	hidden := "Unable to open shared memory region: '/%'"
	unknown := hidden + ": the server can't tell which user calls, so its file must be readable and writable by everybody, " +
		"or its key must begin as --client-shm-prefix says"
	unlisted := "shared memory key '/%' is not allowed: --client-shm-prefix names what keys may begin with"
	for _, c := range []struct {
		env      *infer.Envelope
		prefixes string
		key      string
		want     string // the error, with the key for %; "": none
	}{
		{tcp("", finder{me, true}), "", "memory", ""},
		{tcp("", finder{4711, true}), "", "memory", hidden},
		{tcp("alice", finder{4711, true}), "", "memory", hidden},
		{tcp("", finder{4711, true}), "", "absent", hidden},
		{tcp("", finder{4711, true}), "", "everybody", ""},
		{tcp("", finder{}), "", "memory", unknown},
		{tcp("alice", finder{}), "", "memory", unknown},
		{tcp("", finder{}), "", "absent", unknown},
		{tcp("", finder{}), "", "everybody", ""},
		{tcp("", finder{}), "mem", "memory", ""},
		{tcp("", finder{}), "mem", "everybody", unlisted},
		{tcp("", finder{4711, true}), "mem", "memory", hidden},
		{tcp("alice", finder{}), "shm_{principal}_", "shm_alice_x", ""},
		{tcp("alice", finder{}), "shm_{principal}_", "shm_alice_y", hidden},
		{tcp("alice", finder{}), "shm_{principal}_", "shm_mallory_x", unlisted},
		{tcp("", finder{}), "shm_{principal}_", "shm_mallory_x", unlisted},
		{tcp("", finder{}), "shm_{principal}_", "shm__x", unlisted},
		{tcp("alice", finder{4711, true}), "shm_{principal}_", "shm_alice_x", hidden},
		{&infer.Envelope{Unix: true}, "", "memory", unknown},
		{&infer.Envelope{Unix: true, Peer: infer.Peer{Known: true, UID: 4711}}, "", "memory", hidden},
	} {
		r := regionstest.New(t).Registry(regions.Config{Folder: dir, Prefixes: strings.Fields(c.prefixes)})
		got := ""
		if err := r.Register(t.Context(), c.env, regions.Spec{Name: "a", Key: "/" + c.key, Size: 64}); err != nil {
			got = err.Error()
		}
		if want := strings.ReplaceAll(c.want, "%", c.key); got != want {
			t.Errorf("%+v, %+v, prefixes '%s', key %s:\ngot  %s\nwant %s", c.env.Principal, c.env.Peer, c.prefixes, c.key,
				got, want)
		}
	}
}

// Through a proxy the user is not known: the kernel's word is on the proxy.
func TestForeignFileThroughProxy(t *testing.T) {
	proxied := func(env *infer.Envelope) bool { return !env.Unix }
	r := regionstest.New(t).RegistryOf(regions.Config{Folder: folder(t)}, proxied)
	for name, env := range map[string]*infer.Envelope{
		"known":    {Unix: true, Peer: infer.Peer{Known: true, UID: 0}},
		"of alice": {Unix: true, Principal: &infer.Principal{Name: "alice"}, Peer: me()},
	} {
		err := r.Register(t.Context(), env, memory("a", 64))
		if err == nil || !strings.Contains(err.Error(), "the server can't tell which user calls") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Memory that one owner has registered is refused to others, by whatever name or descriptor.
func TestForeignMemory(t *testing.T) {
	dir := folder(t)
	put(t, dir, "everybody", 0o666)
	if err := os.Link(dir+"/everybody", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	passed := func() *os.File {
		f, err := os.OpenFile(dir+"/everybody", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	w := regionstest.New(t)
	r := w.Registry(regions.Config{Folder: dir})
	ctx, uid := t.Context(), uint32(os.Getuid())
	user := tcp("", finder{uid, true})
	if err := r.Register(ctx, user, regions.Spec{Name: "mine", Key: "everybody", Size: 64}); err != nil {
		t.Fatal(err)
	}
	again := []regions.Spec{{Name: "again", Key: "link", Size: 64}, {Name: "passed", File: passed(), Size: 64}}
	for _, spec := range again {
		if err := r.Register(ctx, &infer.Envelope{Unix: true, Peer: me()}, spec); err != nil {
			t.Errorf("its owner, %s: %v", spec.Name, err)
		}
	}
	others := map[string]*infer.Envelope{"another user": tcp("", finder{uid + 1, true}), "nobody": tcp("", finder{}),
		"alice": tcp("alice", finder{uid, true}), "root": tcp("root", finder{0, true})}
	for name, env := range others {
		for _, spec := range []regions.Spec{{Name: "a", Key: "everybody", Size: 64}, {Name: "a", Key: "link", Offset: 64, Size: 64},
			{Name: "a", File: passed(), Size: 64}} {
			err := r.Register(ctx, env, spec)
			const want = "shared memory region 'a': another caller has registered its memory"
			if infer.CodeOf(err) != infer.PermissionDenied || err.Error() != want {
				t.Errorf("%s, %+v: %v", name, spec, err)
			}
			if spec.File != nil && spec.File.Close() == nil {
				t.Errorf("%s: what was passed stays open", name)
			}
		}
	}
	if n := w.Open(); n != 3 {
		t.Errorf("%d regions are open, want 3", n)
	}
	if err := r.UnregisterAll(ctx, user, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(ctx, others["alice"], regions.Spec{Name: "a", Key: "everybody", Size: 64}); err != nil {
		t.Errorf("after it was given up: %v", err)
	}
	w.Fault = infer.Errorf(infer.Unsupported, "no worker")
	if err := r.Register(ctx, user, regions.Spec{Name: "mine", Key: "memory", Size: 64}); err == nil {
		t.Error("workers that refuse")
	}
	w.Fault = nil
	put(t, dir, "memory", 0o666)
	if err := r.Register(ctx, others["alice"], regions.Spec{Name: "b", Key: "memory", Size: 64}); err != nil {
		t.Errorf("after it was not taken: %v", err)
	}
}

// Device memory is its owner's too, as far as handles tell.
func TestForeignHandle(t *testing.T) {
	r := regionstest.New(t).Registry(regions.Config{Folder: folder(t)})
	spec := func(n byte, device int) regions.Spec {
		return regions.Spec{Name: "a", CUDA: &infer.CUDAHandle{Raw: [64]byte{n}, Device: device}, Size: 64}
	}
	alice, bob := from("alice"), from("bob")
	if err := r.Register(t.Context(), alice, spec(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(t.Context(), bob, spec(1, 0)); infer.CodeOf(err) != infer.PermissionDenied {
		t.Errorf("another's handle: %v", err)
	}
	if err := r.Register(t.Context(), bob, spec(2, 0)); err != nil {
		t.Errorf("his own: %v", err)
	}
	if err := r.Unregister(t.Context(), alice, true, "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Unregister(t.Context(), bob, true, "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(t.Context(), bob, spec(1, 0)); err != nil {
		t.Errorf("after it was given up: %v", err)
	}
}

// Passed descriptors, too, are of memory that the user could use without the server.
func TestForeignDescriptor(t *testing.T) {
	r, uid := regionstest.New(t).Registry(regions.Config{Folder: folder(t)}), uint32(os.Getuid())
	for _, c := range []struct {
		mode uint32
		uid  uint32
		ok   bool
	}{{0o600, uid, true}, {0o600, uid + 1, false}, {0o777, uid + 1, true}} {
		fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "m")
		if err := unix.Ftruncate(fd, 64); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fchmod(fd, c.mode); err != nil {
			t.Fatal(err)
		}
		env := &infer.Envelope{Unix: true, Peer: infer.Peer{Known: true, UID: c.uid}}
		if err := r.Register(t.Context(), env, regions.Spec{Name: "a", File: f, Size: 64}); (err == nil) != c.ok {
			t.Errorf("mode %o, user %d: %v", c.mode, c.uid, err)
		}
		if err := r.UnregisterAll(t.Context(), env, false); err != nil {
			t.Error(err)
		}
	}
}
