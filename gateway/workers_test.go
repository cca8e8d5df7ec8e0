package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client"
)

func TestBackendsTogether(t *testing.T) {
	said := func(version string, gpu bool, unavailable string) client.Backend {
		return client.Backend{Worker: version, Backend: &worker.Backend{Name: "b", Version: version, Gpu: gpu, Unavailable: unavailable}}
	}
	for _, row := range []struct {
		name string
		said []client.Backend
		want string // version, whether it has GPUs, why it is unavailable
	}{
		{"one", []client.Backend{said("1", true, "")}, "1 true "},
		{"the first counts", []client.Backend{said("1", false, ""), said("2", false, "")}, "1 false "},
		{"any GPU", []client.Backend{said("1", false, ""), said("2", true, "")}, "1 true "},
		{"who can use it", []client.Backend{said("1", true, "no"), said("2", false, "")}, "2 false "},
		{"nobody can", []client.Backend{said("1", true, "no"), said("2", true, "neither")}, "1 false no"},
		{"GPU of one that can't", []client.Backend{said("1", false, ""), said("2", true, "no")}, "1 false "},
	} {
		b := together(row.said)["b"]
		got := b.Version + " false " + b.Unavailable
		if b.Gpu {
			got = b.Version + " true " + b.Unavailable
		}
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
	first := said("1", false, "")
	if together([]client.Backend{first, said("2", true, "")}); first.Gpu {
		t.Error("a worker's own word was changed")
	}
}

func TestFindPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"own/sluice-worker-own": 0o755, "lib/libtriton_lib.so": 0o755, "other/sluice-worker-own": 0o755,
		"py/model.py": 0o644, "folder/sluice-worker-folder/x": 0o755} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	all, err := findPrograms(dir)
	if err != nil || len(all) != 1 || all[0].Name != "backend own" || all[0].Path != filepath.Join(dir, "own/sluice-worker-own") || !all[0].Program {
		t.Errorf("got %+v, %v", all, err)
	}
	for _, none := range []string{"", filepath.Join(dir, "nowhere")} {
		if all, err := findPrograms(none); err != nil || len(all) > 0 {
			t.Errorf("%q: got %+v, %v", none, all, err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "own/sluice-worker-own"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := findPrograms(dir); err == nil || !strings.Contains(err.Error(), "sluice-worker-own is not executable") {
		t.Errorf("got %v", err)
	}
	if _, err := findPrograms(filepath.Join(dir, "py/model.py")); err == nil {
		t.Error("a file was taken for a folder of backends")
	}
}
