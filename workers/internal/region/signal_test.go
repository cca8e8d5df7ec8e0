//go:build cgo

package region

import (
	"errors"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const roleEnv = "SLUICE_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "fault" {
		mem := cutOff()
		mem[0] = 1 // it does not return
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// cutOff is a mapping of nothing, which is no region's, after the handler was installed.
func cutOff() []byte {
	if !guarded() {
		os.Exit(3)
	}
	fd, err := unix.MemfdCreate("cut", unix.MFD_CLOEXEC)
	if err != nil {
		os.Exit(3)
	}
	mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		os.Exit(3)
	}
	return mem
}

// A fault that is no region's ends the process with Go's own trace.
func TestFaultElsewhereCrashes(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=fault")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "SIGBUS") || !strings.Contains(string(out), "signal_test.go") {
		t.Errorf("it ended with %v and said %s", err, out)
	}
}

// Go turns faults of its own code into panics, as without the handler.
func TestPanicsStayGos(t *testing.T) {
	mem := cutOff()
	defer unix.Munmap(mem)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var at interface{ Addr() uintptr }
	if v := recovered(func() { mem[100] = 1 }); !errors.As(v, &at) || at.Addr() != uintptr(unsafe.Pointer(&mem[100])) {
		t.Errorf("a fault is %v", v)
	}
	var p *Config
	if v := recovered(func() { p.Size++ }); v == nil || !strings.Contains(v.Error(), "nil pointer") {
		t.Errorf("a nil dereference is %v", v)
	}
}

func recovered(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// Regions are cut off under many threads at once, while others are opened and closed.
func TestFaultsAtOnce(t *testing.T) {
	tab := NewTable()
	defer tab.CloseAll()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for round := range 20 {
				slot := uint32(g*100 + round + 1)
				fd, _ := memory(t, 16*page)
				if err := tab.Open(Config{Slot: slot, Name: "r", Size: 16 * page}, dup(t, fd)); err != nil {
					t.Error(err)
					return
				}
				r := tab.Acquire(slot)
				var users sync.WaitGroup
				for k := range 4 {
					users.Go(func() { _ = r.Write(int64(k)*page, make([]byte, 12*page)) })
				}
				if err := unix.Ftruncate(fd, int64(round%16)*page+7); err != nil {
					t.Error(err)
				}
				users.Wait()
				if err := r.Write(0, make([]byte, 16*page)); err != nil || r.Err() == nil {
					t.Errorf("written: %v, then %v", err, r.Err())
				}
				r.Release()
				if err := tab.Close(t.Context(), slot); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
