package regions_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/regions/regionstest"
	"github.com/sluice-serve/sluice/infer"
)

// folder has the file "memory" of 4096 bytes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "test-regions-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	put(t, dir, "memory", 0o600)
	return dir
}

// put makes a file of 4096 bytes.
func put(t *testing.T, dir, name string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, make([]byte, 4096), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func from(name string) *infer.Envelope {
	at := netip.MustParseAddrPort("127.0.0.1:1")
	return &infer.Envelope{Principal: &infer.Principal{Name: name}, Remote: at, Peer: me()}
}

// me is the user who made the folder.
func me() infer.Peer { return infer.Peer{Known: true, UID: uint32(os.Getuid())} }

func memory(name string, size uint64) regions.Spec {
	return regions.Spec{Name: name, Key: "/memory", Size: size}
}

func TestLife(t *testing.T) {
	w := regionstest.New(t)
	r := w.Registry(regions.Config{Folder: folder(t)})
	ctx, alice := t.Context(), from("alice")
	if err := r.Register(ctx, alice, memory("a", 4096)); err != nil {
		t.Fatal(err)
	}
	under := 0
	req := &infer.Request{Inputs: make([]infer.Tensor, 2), Outputs: make([]infer.RequestedOutput, 1),
		Memory: infer.NewBuffer([]byte("body"), func(*infer.Buffer) { under++ })}
	uses := []regions.Use{{Region: "a", Offset: 8, Size: 16, Index: 1}, {Region: "a", Offset: 4000, Size: 96, Output: true}}
	if err := r.Attach(alice, req, uses); err != nil {
		t.Fatal(err)
	}
	slot := req.Inputs[1].Place.Region
	if slot == 0 || req.Inputs[1].Place != (infer.Place{Region: slot, Offset: 8, Size: 16}) || !req.Inputs[0].Place.IsZero() ||
		req.Outputs[0].Place != (infer.Place{Region: slot, Offset: 4000, Size: 96}) {
		t.Fatalf("places %+v, %+v, %+v", req.Inputs[0].Place, req.Inputs[1].Place, req.Outputs[0].Place)
	}
	if string(req.Memory.Data) != "body" || r.InUse() != 2 {
		t.Fatalf("memory %q, %d references", req.Memory.Data, r.InUse())
	}
	req.Memory.Retain() // a batch
	req.Memory.Release()
	if r.InUse() != 2 || under != 0 {
		t.Fatalf("with a batch in flight: %d references, the body was given back %d times", r.InUse(), under)
	}
	req.Memory.Release()
	if r.InUse() != 0 || under != 1 {
		t.Fatalf("at the end: %d references, the body was given back %d times", r.InUse(), under)
	}
	f := r.Figures()
	if f[0] != (regions.Figures{Owner: "principal", Regions: 1, Bytes: 4096, Requests: 1}) {
		t.Errorf("figures %+v", f)
	}
	if err := r.Unregister(ctx, alice, false, "a"); err != nil || w.Open() != 0 {
		t.Errorf("unregister: %v, %d open", err, w.Open())
	}
	if err := r.Unregister(ctx, alice, false, "a"); err != nil {
		t.Errorf("unregister of none: %v", err)
	}
}

// Unregister comes back when the last reference is given back, not before.
func TestUnregisterWaits(t *testing.T) {
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		w := regionstest.New(t)
		r := w.Registry(regions.Config{Folder: dir})
		ctx, alice := t.Context(), from("alice")
		if err := r.Register(ctx, alice, memory("a", 64)); err != nil {
			t.Fatal(err)
		}
		req := &infer.Request{Inputs: make([]infer.Tensor, 1)}
		use := []regions.Use{{Region: "a", Size: 4}}
		if err := r.Attach(alice, req, use); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := r.Unregister(short, alice, false, "a"); infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("with a deadline: %v", err)
		}
		if err := r.Attach(alice, &infer.Request{Inputs: make([]infer.Tensor, 1)}, use); infer.CodeOf(err) != infer.NotFound {
			t.Errorf("a request after it: %v", err)
		}
		if err := r.Register(ctx, alice, memory("a", 64)); err != nil {
			t.Errorf("the name again: %v", err)
		}
		if w.Open() != 2 {
			t.Errorf("%d are open, want 2", w.Open())
		}
		second := &infer.Request{Inputs: make([]infer.Tensor, 1)}
		if err := r.Attach(alice, second, use); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- r.UnregisterAll(ctx, alice, false) }()
		synctest.Wait()
		time.Sleep(time.Second)
		second.Memory.Release()
		if err := <-done; err != nil || time.Since(began) != time.Second {
			t.Errorf("unregister: %v after %v", err, time.Since(began))
		}
		if err := r.Register(ctx, alice, memory("b", 64)); err != nil {
			t.Fatal(err)
		}
		third := &infer.Request{Inputs: make([]infer.Tensor, 1)}
		if err := r.Attach(alice, third, []regions.Use{{Region: "b", Size: 4}}); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if err := r.Unregister(ctx, alice, false, "b"); infer.CodeOf(err) != infer.Unavailable || time.Since(began) != 30*time.Second {
			t.Errorf("without a deadline: %v after %v", err, time.Since(began))
		}
		third.Memory.Release()
		req.Memory.Release()
	})
}

// Regions are their owner's: to others they do not exist.
func TestOwners(t *testing.T) {
	dir := folder(t)
	r := regionstest.New(t).Registry(regions.Config{Folder: dir})
	ctx := t.Context()
	user := func(uid uint32) *infer.Envelope {
		return &infer.Envelope{Unix: true, Peer: infer.Peer{Known: true, UID: uid}}
	}
	near, me := netip.MustParseAddrPort("127.0.0.1:1"), uint32(os.Getuid())
	owners := map[string]*infer.Envelope{"alice": from("alice"), "bob": from("bob"), "loopback": {Remote: near},
		"user": user(me), "a user called by a number": from(fmt.Sprint("u", me)),
		"nameless": {Principal: &infer.Principal{}, Unix: true}, "another user": {Remote: near, Peer: infer.Peer{Finder: finder{me + 1, true}}}}
	for name, env := range owners {
		if name == "nameless" {
			continue
		}
		put(t, dir, name, 0o666)
		if err := r.Register(ctx, env, regions.Spec{Name: name, Key: name, Size: 64}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	tcp := &infer.Envelope{Remote: near, Peer: infer.Peer{Finder: finder{me, true}}}
	if all, err := r.Status(tcp, false, ""); err != nil || len(all) != 1 || all[0].Name != "user" {
		t.Errorf("over TCP the user sees %v, %v", all, err)
	}
	for name, env := range owners {
		all, err := r.Status(env, false, "")
		if err != nil || name != "nameless" && (len(all) != 1 || all[0].Name != name) || name == "nameless" && len(all) != 0 {
			t.Errorf("%s sees %v, %v", name, all, err)
		}
		for other := range owners {
			if other == name {
				continue
			}
			_, err := r.Status(env, false, other)
			attach := r.Attach(env, &infer.Request{Inputs: make([]infer.Tensor, 1)}, []regions.Use{{Region: other, Size: 1}})
			if infer.CodeOf(err) != infer.NotFound || infer.CodeOf(attach) != infer.NotFound {
				t.Errorf("%s sees the region of %s: %v, %v", name, other, err, attach)
			}
			if err := r.Unregister(ctx, env, false, other); err != nil {
				t.Errorf("unregister: %v", err)
			}
		}
	}
	if err := r.UnregisterAll(ctx, owners["alice"], false); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, f := range r.Figures() {
		sum += f.Regions
	}
	if sum != len(owners)-2 {
		t.Errorf("%d regions are left, want %d", sum, len(owners)-2)
	}
}

func TestRefused(t *testing.T) {
	dir := folder(t)
	if err := os.Symlink(filepath.Join(dir, "memory"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sluice_x"), make([]byte, 64), 0o600); err != nil {
		t.Fatal(err)
	}
	w := regionstest.New(t)
	r := w.Registry(regions.Config{Folder: dir})
	args := "failed to register shared memory region 'a': invalid args"
	for _, c := range []struct {
		spec regions.Spec
		code infer.Code
		text string
	}{
		{memory("", 64), infer.InvalidArg, "'region name' is necessary to register system shared memory region"},
		{memory("\xff", 64), infer.InvalidArg, "the name of a shared memory region is text of at most 1024 bytes"},
		{memory(strings.Repeat("x", 1025), 64), infer.InvalidArg, "the name of a shared memory region is text of at most 1024 bytes"},
		{memory("a", 0), infer.InvalidArg, args},
		{memory("a", 4097), infer.InvalidArg, args},
		{memory("a", 1<<63), infer.InvalidArg, args},
		{memory("a", 1<<64-1), infer.InvalidArg, args},
		{regions.Spec{Name: "a", Key: "memory", Offset: 4096, Size: 1}, infer.InvalidArg, args},
		{regions.Spec{Name: "a", Key: "memory", Offset: 1<<64 - 1, Size: 2}, infer.InvalidArg, args},
		{regions.Spec{Name: "a", Key: "memory", Offset: 1 << 62, Size: 1 << 40}, infer.InvalidArg, args},
		{regions.Spec{Name: "a", Key: "/link", Size: 64}, infer.Internal, "Unable to open shared memory region: '/link'"},
		{regions.Spec{Name: "a", Key: "/fifo", Size: 64}, infer.Internal, "Unable to open shared memory region: '/fifo'"},
		{regions.Spec{Name: "a", Key: "/../x", Size: 64}, infer.Internal, "Unable to open shared memory region: '/../x'"},
		{regions.Spec{Name: "a", Key: "..", Size: 64}, infer.Internal, "Unable to open shared memory region: '..'"},
		{regions.Spec{Name: "a", Key: "bytes\xff", Size: 64}, infer.Internal, "Unable to open shared memory region: 'bytes\uFFFD'"},
		{regions.Spec{Name: "a", Key: "///", Size: 64}, infer.Internal, "Unable to open shared memory region: '///'"},
		{regions.Spec{Name: "a", Key: "/sluice_x", Size: 64}, infer.InvalidArg, "shared memory key '/sluice_x' is reserved: keys must not begin with 'sluice_'"},
	} {
		err := r.Register(t.Context(), from("alice"), c.spec)
		if err == nil || infer.CodeOf(err) != c.code || err.Error() != c.text {
			t.Errorf("%+v: got %v, want %v: %s", c.spec, err, c.code, c.text)
		}
	}
	w.Fault = infer.Errorf(infer.Unsupported, "no worker")
	if err := r.Register(t.Context(), from("alice"), memory("a", 64)); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("workers that refuse: %v", err)
	}
	w.Fault = nil
	if all, err := r.Status(from("alice"), false, ""); err != nil || len(all) != 0 {
		t.Errorf("%v, %v is left of it", all, err)
	}
	if err := r.Register(t.Context(), from("alice"), memory("a", 64)); err != nil {
		t.Errorf("the name after that: %v", err)
	}
}

// Passed descriptors are looked at, and closed where they are not taken.
func TestPassed(t *testing.T) {
	r := regionstest.New(t).Registry(regions.Config{Folder: folder(t)})
	memfd := func(flags int) *os.File {
		fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, 64); err != nil {
			t.Fatal(err)
		}
		if flags == unix.O_RDWR {
			return os.NewFile(uintptr(fd), "m")
		}
		defer unix.Close(fd)
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	disk, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    *os.File
		size uint64
		ok   bool
	}{"memfd": {memfd(unix.O_RDWR), 64, true}, "read only": {memfd(unix.O_RDONLY), 64, false}, "too small": {memfd(unix.O_RDWR), 65, false},
		"on a disk": {disk, 0, false}} {
		err := r.Register(t.Context(), from("alice"), regions.Spec{Name: name, File: c.f, Size: max(c.size, 1)})
		if (err == nil) != c.ok || err != nil && infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s: %v, want ok %t", name, err, c.ok)
		}
		if closed := c.f.Close() != nil; closed == c.ok {
			t.Errorf("%s: its file is closed: %t", name, closed)
		}
	}
}

// Requests, registrations and ends from many goroutines: all references come back.
func TestConcurrent(t *testing.T) {
	w, dir := regionstest.New(t), folder(t)
	for n := range 3 {
		put(t, dir, fmt.Sprint("memory", n), 0o600)
	}
	r := w.Registry(regions.Config{Folder: dir})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			env, name := from(fmt.Sprint(n%3)), string(rune('a'+n%2))
			for range 300 {
				spec := regions.Spec{Name: name, Key: fmt.Sprint("memory", n%3), Size: 64}
				if err := r.Register(t.Context(), env, spec); err != nil && infer.CodeOf(err) != infer.AlreadyExists {
					t.Errorf("register: %v", err)
				}
				req := &infer.Request{Inputs: make([]infer.Tensor, 1)}
				switch err := r.Attach(env, req, []regions.Use{{Region: name, Size: 4}}); {
				case err == nil:
					req.Memory.Retain()
					wg.Go(req.Memory.Release)
					req.Memory.Release()
				case infer.CodeOf(err) != infer.NotFound:
					t.Errorf("attach: %v", err)
				}
				if err := r.Unregister(t.Context(), env, false, name); err != nil {
					t.Errorf("unregister: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.InUse(); n != 0 {
		t.Errorf("%d references are held", n)
	}
}

func TestStatus(t *testing.T) {
	r := regionstest.New(t).Registry(regions.Config{Folder: folder(t)})
	for _, name := range []string{"b", "a"} {
		if err := r.Register(t.Context(), from("alice"), memory(name, 64)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Register(t.Context(), from("alice"), regions.Spec{Name: "c", CUDA: &infer.CUDAHandle{Device: 1}, Size: 8}); err != nil {
		t.Fatal(err)
	}
	all, err := r.Status(from("alice"), false, "")
	want := []regions.Status{{Name: "a", Key: "/memory", Size: 64}, {Name: "b", Key: "/memory", Size: 64}}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("got %+v, %v", all, err)
	}
	if all, err := r.Status(from("alice"), true, "c"); err != nil || len(all) != 1 || all[0].Device != 1 {
		t.Errorf("CUDA: %+v, %v", all, err)
	}
	_, err = r.Status(from("alice"), true, "a")
	if infer.CodeOf(err) != infer.NotFound || err.Error() != "The region named 'a' is registered as system shared memory, not CUDA shared memory" {
		t.Errorf("of the other kind: %v", err)
	}
	if err := r.Unregister(t.Context(), from("alice"), true, "a"); err != nil {
		t.Error(err)
	}
	if _, err := r.Status(from("alice"), false, "a"); err != nil {
		t.Errorf("an unregister of the other kind took it: %v", err)
	}
}

func BenchmarkAttach(b *testing.B) {
	r := regionstest.New(b).Registry(regions.Config{Folder: "/dev/shm"})
	alice := from("alice")
	if err := r.Register(b.Context(), alice, regions.Spec{Name: "a", CUDA: &infer.CUDAHandle{}, Size: 4096}); err != nil {
		b.Fatal(err)
	}
	req := &infer.Request{Inputs: make([]infer.Tensor, 1), Outputs: make([]infer.RequestedOutput, 1)}
	uses := []regions.Use{{Region: "a", Size: 64}, {Region: "a", Offset: 64, Size: 64, Output: true}}
	b.ReportAllocs()
	for b.Loop() {
		req.Memory = nil
		if err := r.Attach(alice, req, uses); err != nil {
			b.Fatal(err)
		}
		req.Memory.Release()
	}
}
