package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors are found by their numbers; those of calls that were given up are closed.
func TestPass(t *testing.T) {
	gateway, worker, err := NewPass()
	if err != nil {
		t.Fatal(err)
	}
	defer CloseDescriptors(gateway)
	defer CloseDescriptors(worker)
	var taker Taker
	files := make([]int, 6)
	for i := range files {
		if files[i], err = newMemfd("passed", int64(i+1)); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(files[i])
		if err := PassFile(gateway, uint64(i+1), files[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range []uint64{2, 4, 5} {
		if token == 4 { // the call of the first was given up, and comes after all
			if fd, err := taker.Take(worker, 1); err == nil {
				t.Errorf("descriptor %d was passed before another that was taken", fd)
			}
		}
		fd, err := taker.Take(worker, token)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(token) {
			t.Errorf("descriptor %d is one of %d bytes, %v", token, st.Size, err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d is inherited by children: %v", token, err)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
	if err := taker.Close(); err != nil { // closes the sixth
		t.Error(err)
	}
	if err := PassFile(gateway, 5, files[0]); err != nil {
		t.Fatal(err)
	}
	if fd, err := taker.Take(worker, 5); err == nil {
		t.Errorf("descriptor %d was taken after the end", fd)
	}
	taker = Taker{}
	if fd, err := taker.Take(worker, 6); err == nil {
		t.Errorf("descriptor %d came from nowhere", fd)
	}
	// What is no message of ours is refused, and nothing stays open of it.
	if err := unix.Sendmsg(gateway, []byte("short"), unix.UnixRights(files[:3]...), nil, 0); err != nil {
		t.Fatal(err)
	}
	if fd, err := taker.Take(worker, 7); err == nil {
		t.Errorf("descriptor %d was taken from a wrong message", fd)
	}
	if err := CloseDescriptors(gateway); err != nil {
		t.Error(err)
	}
	if fd, err := taker.Take(worker, 8); err == nil {
		t.Errorf("descriptor %d came from a closed socket", fd)
	}
	if gateway, err = unix.Dup(worker); err != nil { // for the deferred close
		t.Fatal(err)
	}
}
