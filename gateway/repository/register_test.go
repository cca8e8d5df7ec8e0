package repository

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func TestRegister(t *testing.T) {
	w := &fakeWorkers{}
	r, own := explicit(t, w, Config{Startup: []string{"*"}}, map[string]string{"net/config.pbtxt": identity, "net/1/": ""})
	one := write(t, t.TempDir(), map[string]string{"net/config.pbtxt": `name: "net" ` + identity, "net/1/": ""})
	two := write(t, t.TempDir(), map[string]string{"all/config.pbtxt": passing("step", "-1"), "all/1/": "", "step/config.pbtxt": identity, "step/3/": ""})
	symlink(t, filepath.Join(own, "net"), filepath.Join(two, "link"))

	fails(t, r.Register("/nowhere", nil), infer.InvalidArg, "failed to register '/nowhere', repository not found")
	fails(t, r.Register(own, nil), infer.AlreadyExists, "model repository '"+own+"' has already been registered")
	for path, names := range map[string]map[string]string{one: {"net": "../dir/one.tar.gz"}, two: {"all": "two"}} {
		if err := r.Register(path, names); err != nil {
			t.Fatal(err)
		}
		fails(t, r.Register(path, nil), infer.AlreadyExists, "model repository '"+path+"' has already been registered")
	}
	fails(t, r.Register(t.TempDir(), map[string]string{"x": "two"}), infer.AlreadyExists, "failed to register 'two', there is a conflicting mapping for 'two'")

	for _, name := range []string{"../dir/one.tar.gz", "two"} {
		if err := r.Load(t.Context(), name, &Override{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := index(r); got != "../dir/one.tar.gz 1 READY\nnet 1 READY\nstep 3 READY\ntwo 1 READY\n" {
		t.Errorf("got %s", got)
	}
	if md, err := r.Config("two", ""); err != nil || md.Name != "two" {
		t.Errorf("%v, %v", md, err)
	}
	if err := r.Load(t.Context(), "link", &Override{}); err == nil {
		t.Error("a link out of a registered repository was loaded")
	}
	if err := r.Load(t.Context(), "all", &Override{}); err == nil {
		t.Error("a folder was loaded by its own name")
	}
	if err := r.Unregister(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	if err := r.Unregister(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if got := index(r); got != "net 1 READY\n" {
		t.Errorf("at the end: %s", got)
	}
	fails(t, r.Unregister(t.Context(), one), infer.InvalidArg, "failed to unregister '"+one+"', repository not found")
	if err := r.Load(t.Context(), "two", &Override{}); err == nil {
		t.Error("a model of a repository that is gone was loaded")
	}
	if n := len(r.entries); n != 1 {
		t.Errorf("%d models are remembered", n)
	}
}

// TestRegisterFailed: nothing of a load that failed stays behind, not even unreadiness.
func TestRegisterFailed(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{Namespacing: true}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	bad := write(t, t.TempDir(), map[string]string{"all/config.pbtxt": passing("step", "7"), "all/1/": "", "step/config.pbtxt": identity, "step/3/": ""})
	if err := r.Register(bad, map[string]string{"all": "two"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Load(t.Context(), "two", &Override{}); err == nil {
		t.Fatal("an ensemble without its step's version was loaded")
	}
	if err := r.Unregister(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	if !r.Ready() || len(r.entries) != 0 {
		t.Errorf("ready %t, remembers %v", r.Ready(), r.entries)
	}
}

// TestRegisteredNameIsOneModel: a call about a name that was given to a folder leaves a
// model of that name in another repository alone.
func TestRegisteredNameIsOneModel(t *testing.T) {
	r, own := explicit(t, &fakeWorkers{}, Config{Namespacing: true, Startup: []string{"*"}}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	one := write(t, t.TempDir(), map[string]string{"net/config.pbtxt": identity, "net/1/": ""})
	if err := r.Register(one, map[string]string{"net": "m"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Load(t.Context(), "m", &Override{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Acquire(t.Context(), "m", ""); err == nil {
		t.Errorf("m of %s and of %s are not told apart", own, one)
	}
	if err := r.Unload(t.Context(), "m", true); err != nil {
		t.Fatal(err)
	}
	if err := r.Unregister(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.ModelReady("m", ""); !ok || err != nil {
		t.Errorf("the model of the other repository: ready %t, %v", ok, err)
	}
}

// TestRegisterBeforeTheStart: what comes before the models are loaded is refused whole, so
// that it can be tried again.
func TestRegisterBeforeTheStart(t *testing.T) {
	r := New(Config{Mode: Explicit}, Deps{Log: slog.New(slog.DiscardHandler)})
	one := write(t, t.TempDir(), map[string]string{"net/config.pbtxt": identity, "net/1/": ""})
	for range 2 {
		fails(t, r.Register(one, map[string]string{"net": "n"}), infer.Unavailable, "Server not ready")
	}
}

func TestRegisterNeedsExplicitControl(t *testing.T) {
	r, err := load(t, &fakeWorkers{}, Config{}, map[string]string{"m/config.pbtxt": identity, "m/1/": ""})
	if err != nil {
		t.Fatal(err)
	}
	fails(t, r.Register(t.TempDir(), nil), infer.Unsupported, "repository registration is not allowed if model control mode is not EXPLICIT")
}

// TestUnregisterWaits: it answers when requests have let go of the model.
func TestUnregisterWaits(t *testing.T) {
	r, _ := explicit(t, &fakeWorkers{}, Config{}, nil)
	one := write(t, t.TempDir(), map[string]string{"net/config.pbtxt": identity, "net/1/": ""})
	if err := r.Register(one, map[string]string{"net": "n"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Load(t.Context(), "n", &Override{}); err != nil {
		t.Fatal(err)
	}
	m, err := r.Acquire(t.Context(), "n", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Unregister(ctx, one); infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("while a request holds it: %v", err)
	}
	eventually(t, "it takes no more requests", func() bool {
		again, err := r.Acquire(t.Context(), "n", "")
		if err == nil {
			again.Release()
		}
		return err != nil
	})
	m.Release()
	eventually(t, "it is forgotten", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.entries) == 0 })
}

// TestRegisterStorm: repositories come and go while all are listed and loaded; at the end
// nothing is left, and each load was freed.
func TestRegisterStorm(t *testing.T) {
	r, _ := explicit(t, &fakeWorkers{}, Config{Namespacing: true}, nil)
	top := t.TempDir()
	var wg sync.WaitGroup
	for i := range 4 {
		name := "m" + strconv.Itoa(i)
		dir := write(t, filepath.Join(top, name), map[string]string{"net/config.pbtxt": identity, "net/1/": "", "side/config.pbtxt": identity, "side/1/": ""})
		rng := rand.New(rand.NewPCG(2, uint64(i)))
		wg.Go(func() {
			for range 25 {
				if err := r.Register(dir, map[string]string{"net": name}); err != nil {
					t.Error(err)
				}
				if err := r.Load(t.Context(), name, &Override{}); err != nil {
					t.Error(err)
				}
				if ok, err := r.ModelReady(name, ""); !ok || err != nil {
					t.Errorf("%s: %t, %v", name, ok, err)
				}
				if rng.IntN(2) == 0 {
					if err := r.Unload(t.Context(), name, true); err != nil {
						t.Error(err)
					}
				}
				if err := r.Unregister(t.Context(), dir); err != nil {
					t.Error(err)
				}
				if _, err := r.Acquire(t.Context(), name, ""); infer.CodeOf(err) != infer.NotFound {
					t.Errorf("%s after it went: %v", name, err)
				}
			}
		})
		wg.Go(func() {
			for range 25 {
				r.Index(false)
			}
		})
	}
	wg.Wait()
	if got := index(r); got != "" || len(r.joined) != 0 {
		t.Errorf("left: %s %v", got, r.joined)
	}
	if err := os.RemoveAll(top); err != nil {
		t.Error(err)
	}
}
