package wakelatency

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestHoldWrites(t *testing.T) {
	device := filepath.Join(t.TempDir(), "device")
	for want, d := range map[uint32]time.Duration{0: 0, 20: 20 * time.Microsecond, 1: 1999 * time.Nanosecond} {
		if err := os.WriteFile(device, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Hold(device, d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(device)
		if err != nil || len(got) != 4 || binary.NativeEndian.Uint32(got) != want {
			t.Errorf("%v: wrote %v, want %d µs (%v)", d, got, want, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestHoldFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := Hold(missing, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v for a kernel without the device", err)
	}
	for _, d := range []time.Duration{-time.Microsecond, 1 << 62} {
		if _, err := Hold(missing, d); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: got %v", d, err)
		}
	}
	if _, err := Hold("/dev/full", 0); err == nil {
		t.Error("what can't be written is held")
	}
}

// The kernel keeps the least that anybody asked for, while the file is open.
func TestKernelHolds(t *testing.T) {
	f, err := Hold(Device, 3*time.Microsecond)
	if err != nil {
		t.Skipf("not allowed here: %v", err)
	}
	read := func() int {
		r, err := os.Open(Device)
		if err != nil {
			t.Skipf("not allowed here: %v", err)
		}
		defer r.Close()
		var b [4]byte
		if _, err := r.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		return int(int32(binary.NativeEndian.Uint32(b[:])))
	}
	if got := read(); got > 3 {
		t.Errorf("the kernel holds %d µs, want 3 at most", got)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
