package region

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

const page = 4096

// memory is a file in memory of size bytes that count up, and a writer of its own.
func memory(t testing.TB, size int64) (fd int, mem []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		mem[i] = byte(i * 7)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Munmap(mem), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	})
	return fd, mem
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// opened is a region in a table of its own, closed with the test.
func opened(t testing.TB, c Config, fd int) (*Table, *Region) {
	t.Helper()
	tab := NewTable()
	if err := tab.Open(c, dup(t, fd)); err != nil {
		t.Fatal(err)
	}
	r := tab.Acquire(c.Slot)
	t.Cleanup(func() {
		r.Release()
		tab.CloseAll()
	})
	return tab, r
}

// A range at any offset is what the client sees there, both ways.
func TestReadAndWrite(t *testing.T) {
	for _, off := range []int64{0, 1, 64, page - 1, page, page + 1, 2*page + 100} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			fd, mem := memory(t, 4*page)
			_, r := opened(t, Config{Slot: 1, Name: "r", Offset: off, Size: page + 10}, fd)
			got := make([]byte, 100)
			if err := r.Read(got, page-90); err != nil || !bytes.Equal(got, mem[off+page-90:][:100]) {
				t.Errorf("read other bytes, or %v", err)
			}
			if err := r.Write(10, []byte("written")); err != nil || string(mem[off+10:][:7]) != "written" {
				t.Errorf("wrote %q, %v", mem[off+10:][:7], err)
			}
			if in := r.InPlace(0, page+10); in != nil && &in[0] == nil || in != nil && !bytes.Equal(in, mem[off:][:page+10]) {
				t.Error("what lies in place differs")
			}
			if err := r.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	fd, _ := memory(t, page)
	_, r := opened(t, Config{Slot: 1, Name: "r", Offset: 10, Size: 100}, fd)
	for _, ok := range [][2]int64{{0, 0}, {0, 100}, {100, 0}, {99, 1}} {
		if err := r.Check(ok[0], ok[1]); err != nil {
			t.Error(err)
		}
	}
	const most = 1<<63 - 1
	for _, bad := range [][2]int64{{0, 101}, {101, 0}, {99, 2}, {-1, 1}, {1, -1}, {most, most}, {most, 1}, {1, most}, {-most - 1, -most - 1}} {
		if err := r.Check(bad[0], bad[1]); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestOpenRefused(t *testing.T) {
	fd, _ := memory(t, page)
	disk, err := os.Create(t.TempDir() + "/disk")
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	defer unix.Close(pipe[0])
	const most = 1<<63 - 1
	cases := map[string]struct {
		c  Config
		fd int
	}{
		"larger":          {Config{Slot: 1, Size: page + 1}, fd},
		"offset":          {Config{Slot: 1, Offset: 1, Size: page}, fd},
		"negative":        {Config{Slot: 1, Offset: -1, Size: 10}, fd},
		"negative size":   {Config{Slot: 1, Size: -1}, fd},
		"no bytes":        {Config{Slot: 1}, fd},
		"huge":            {Config{Slot: 1, Offset: most, Size: most}, fd},
		"past everything": {Config{Slot: 1, Offset: infer.MaxRegionSize, Size: infer.MaxRegionSize}, fd},
		"slot 0":          {Config{Size: 10}, fd},
		"slot":            {Config{Slot: infer.MaxRegions + 1, Size: 10}, fd},
		"a pipe":          {Config{Slot: 1, Size: 10}, pipe[0]},
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(disk.Fd()), &fs); err == nil && fs.Type != unix.TMPFS_MAGIC {
		cases["a disk"] = struct {
			c  Config
			fd int
		}{Config{Slot: 1, Size: 10}, int(disk.Fd())}
	}
	tab := NewTable()
	defer tab.CloseAll()
	for name, c := range cases {
		open := files(t)
		if err := tab.Open(c.c, dup(t, c.fd)); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s: %v", name, err)
		}
		if n := files(t); n != open {
			t.Errorf("%s: %d descriptors are open, were %d", name, n, open)
		}
	}
}

// files counts this process's descriptors.
func files(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A region is used again and again under the same slot, and nothing stays open of it.
func TestSlots(t *testing.T) {
	fd, _ := memory(t, page)
	tab := NewTable()
	defer tab.CloseAll()
	before := files(t)
	for range 100 {
		if err := tab.Open(Config{Slot: 7, Name: "r", Size: 10}, dup(t, fd)); err != nil {
			t.Fatal(err)
		}
		if err := tab.Open(Config{Slot: 7, Name: "r", Size: 10}, dup(t, fd)); infer.CodeOf(err) != infer.AlreadyExists {
			t.Fatalf("slot taken twice: %v", err)
		}
		if err := tab.Close(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
	}
	if err := tab.Close(t.Context(), 7); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("closed twice: %v", err)
	}
	if r := tab.Acquire(7); r != nil {
		t.Error("a closed region is found")
	}
	if n := files(t); n != before {
		t.Errorf("%d descriptors are open, were %d", n, before)
	}
}

// Who closes a region waits for its users; who waits no longer leaves it to the last.
func TestCloseWaits(t *testing.T) {
	fd, _ := memory(t, page)
	tab := NewTable()
	if err := tab.Open(Config{Slot: 1, Name: "r", Size: 10}, dup(t, fd)); err != nil {
		t.Fatal(err)
	}
	before := files(t)
	r := tab.Acquire(1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := tab.Close(ctx, 1); infer.CodeOf(err) != infer.Cancelled {
		t.Errorf("closed under a user: %v", err)
	}
	if err := r.Read(make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	r.Release()
	if n := files(t); n != before-1 {
		t.Errorf("%d descriptors are open, want %d", n, before-1)
	}
	tab.CloseAll()
	if err := tab.Open(Config{Slot: 1, Name: "r", Size: 10}, dup(t, fd)); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("opened in a closed table: %v", err)
	}
}

// Memory that is cut off under a reader or a writer ends neither, and marks the region.
func TestTruncated(t *testing.T) {
	use := map[string]func(r *Region) error{
		"read":  func(r *Region) error { return r.Read(make([]byte, 3*page), 100) },
		"write": func(r *Region) error { return r.Write(100, make([]byte, 3*page)) },
		"only asked": func(r *Region) error {
			return nil
		},
	}
	for name, f := range use {
		for _, size := range []int64{0, 1, page, 3*page + 1, 4*page - 1} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				fd, _ := memory(t, 4*page)
				_, r := opened(t, Config{Slot: 1, Name: "cut", Size: 4 * page}, fd)
				_, other := opened(t, Config{Slot: 2, Name: "other", Size: 10}, must(memory(t, page)))
				if err := unix.Ftruncate(fd, size); err != nil {
					t.Fatal(err)
				}
				if err := f(r); err != nil {
					t.Error(err)
				}
				err := r.Err()
				if infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), "'cut' was truncated") {
					t.Errorf("its error is %v", err)
				}
				if err := unix.Ftruncate(fd, 4*page); err != nil {
					t.Fatal(err)
				}
				if r.Err() == nil {
					t.Error("it is good again")
				}
				if err := other.Err(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func must(fd int, _ []byte) int { return fd }

// Memory that grows after it was registered changes nothing.
func TestGrown(t *testing.T) {
	fd, mem := memory(t, page)
	_, r := opened(t, Config{Slot: 1, Name: "r", Size: page}, fd)
	if err := unix.Ftruncate(fd, 10*page); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, page)
	if err := errors.Join(r.Read(got, 0), r.Err()); err != nil || !bytes.Equal(got, mem) {
		t.Errorf("read other bytes, or %v", err)
	}
	if err := r.Check(page, 1); err == nil {
		t.Error("it is larger than its registered range")
	}
}

func TestSeals(t *testing.T) {
	t.Run("shrink", func(t *testing.T) {
		fd, _ := memory(t, page)
		seal(t, fd, unix.F_SEAL_SHRINK)
		_, r := opened(t, Config{Slot: 1, Name: "r", Size: page}, fd)
		if !r.fixed || r.Frozen() || !r.writable {
			t.Errorf("fixed %v, frozen %v, writable %v", r.fixed, r.Frozen(), r.writable)
		}
	})
	t.Run("write", func(t *testing.T) {
		fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if _, err := unix.Pwrite(fd, []byte("content"), 0); err != nil {
			t.Fatal(err)
		}
		seal(t, fd, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE)
		_, r := opened(t, Config{Slot: 1, Name: "r", Size: 7}, fd)
		got := make([]byte, 7)
		if err := r.Read(got, 0); err != nil || string(got) != "content" || !r.Frozen() {
			t.Errorf("%q, %v, frozen %v", got, err, r.Frozen())
		}
		if err := r.Write(0, got); infer.CodeOf(err) != infer.InvalidArg || r.Room(0, 7) != nil {
			t.Errorf("written: %v", err)
		}
	})
	t.Run("write, not shrink", func(t *testing.T) {
		fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, page); err != nil {
			t.Fatal(err)
		}
		seal(t, fd, unix.F_SEAL_WRITE)
		_, r := opened(t, Config{Slot: 1, Name: "r", Size: page}, fd)
		if r.Frozen() {
			t.Error("who cuts it off changes its bytes to zeros, and it is said to be frozen")
		}
		if err := r.Write(0, []byte("x")); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("written: %v", err)
		}
	})
	t.Run("future write", func(t *testing.T) {
		fd, _ := memory(t, page)
		seal(t, fd, 0x10)
		_, r := opened(t, Config{Slot: 1, Name: "r", Size: page}, fd)
		if err := r.Write(0, []byte("x")); infer.CodeOf(err) != infer.InvalidArg || r.Frozen() {
			t.Errorf("written: %v, frozen %v", err, r.Frozen())
		}
	})
	t.Run("read only", func(t *testing.T) {
		fd, _ := memory(t, page)
		ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			t.Fatal(err)
		}
		defer ro.Close()
		_, r := opened(t, Config{Slot: 1, Name: "r", Size: page}, int(ro.Fd()))
		if err := r.Write(0, []byte("x")); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("written: %v", err)
		}
	})
}

func seal(t testing.TB, fd, seals int) {
	t.Helper()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
}

// Memory that is too small when a worker opens it in place of a lost one is a region that
// is bad.
func TestAgain(t *testing.T) {
	fd, _ := memory(t, page)
	_, r := opened(t, Config{Slot: 1, Name: "r", Size: 2 * page, Again: true}, fd)
	got := []byte("xx")
	if err := r.Read(got, page); err != nil || got[0] != 0 || r.Err() == nil || r.InPlace(0, 1) != nil {
		t.Errorf("read %q, %v, %v", got, err, r.Err())
	}
	if err := r.Write(page, got); err != nil {
		t.Error(err)
	}
}
