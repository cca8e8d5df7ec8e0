package shm_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/workers/shm"
)

// unixPair is a connected pair over a named socket.
func unixPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if theirs, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	if err := theirs.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestHandover(t *testing.T) {
	ours, theirs := unixPair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := shm.SendDescriptors(ours, int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write([]byte("rest")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	fds, err := shm.ReceiveDescriptors(theirs, 1)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v; want close on exec", flags, err)
	}
	if _, err := unix.Write(fds[0], []byte("through")); err != nil {
		t.Fatal(err)
	}
	if err := shm.CloseDescriptors(fds...); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "through" {
		t.Errorf("the pipe gave %q, %v", got, err)
	}
	rest := make([]byte, 4)
	if _, err := io.ReadFull(theirs, rest); err != nil || string(rest) != "rest" {
		t.Errorf("after the handover came %q, %v; want what was written after it", rest, err)
	}
}

func TestHandoverRefuses(t *testing.T) {
	const text = "sluice shared memory\x02"
	for _, row := range []struct {
		name, text string
		fds        int
		want       string
	}{
		{"none", text, 0, "0 descriptors came, want 2"},
		{"too few", text, 1, "1 descriptors came, want 2"},
		{"too many", text, 3, "3 descriptors came, want 2"},
		{"more than it takes", text, 20, "descriptors"},
		{"another peer", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 2, "no gateway"},
		{"short", "sluice", 2, "EOF"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ours, theirs := unixPair(t)
			before := openDescriptors(t)
			var fds []int
			for range row.fds {
				fds = append(fds, int(os.Stdin.Fd()))
			}
			if _, _, err := ours.WriteMsgUnix([]byte(row.text), unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			if err := ours.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := shm.ReceiveDescriptors(theirs, 2); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, were %d", after, before)
			}
		})
	}
}
