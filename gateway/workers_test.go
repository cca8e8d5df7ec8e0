package gateway

import (
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
