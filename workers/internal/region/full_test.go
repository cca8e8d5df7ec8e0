package region

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// A hole of a file whose file system is full has no page for what is written: the region is
// bad, and nothing else.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(64 * page); err != nil {
		t.Fatal(err)
	}
	_, r := opened(t, Config{Slot: 1, Name: "r", Size: 64 * page}, int(f.Fd()))
	if err := errors.Join(r.Write(0, make([]byte, page)), r.Err()); err != nil {
		t.Fatalf("what has room: %v", err)
	}
	if err := r.Write(0, make([]byte, 64*page)); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), "full") {
		t.Errorf("written to a full file system: %v", err)
	}
}
