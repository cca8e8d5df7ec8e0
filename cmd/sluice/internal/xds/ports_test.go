package xds

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPortFileFollowsNoLink: in a folder like /tmp others know where the file will be.
func TestPortFileFollowsNoLink(t *testing.T) {
	folder, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "ports")
	for _, link := range []string{file, filepath.Join(folder, ".ports.part")} {
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := writePorts(file, map[string]int{"xds": 1}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "secret" {
		t.Errorf("a file that a link named has %q, %v", b, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != `{"xds":1}` {
		t.Errorf("the port file has %q, %v", b, err)
	}
}
