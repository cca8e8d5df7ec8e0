package plane

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceFollowsNoLink: in a folder like /tmp others know where the file will be.
func TestReplaceFollowsNoLink(t *testing.T) {
	folder, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "state")
	for _, link := range []string{file, filepath.Join(folder, ".state.part")} {
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := replace(file, []byte("targets")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "secret" {
		t.Errorf("a file that a link named has %q, %v", b, err)
	}
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v, want one of mode 0600", info, err)
	}
}
