package gateway

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
)

func TestFindGPUs(t *testing.T) {
	dev := fstest.MapFS{}
	for _, name := range []string{"nvidia10", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia2", "null"} {
		dev[name] = &fstest.MapFile{}
	}
	if got := findGPUs(dev); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("got %v", got)
	}
	if got := findGPUs(fstest.MapFS{}); len(got) != 0 {
		t.Errorf("a host without: %v", got)
	}
}

// A GPU's worker is told how much of its memory it may take for tensors; others have their default.
func TestDeviceMemoryOfWorkers(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sluice-worker")
	if err := os.WriteFile(binary, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	w := &WorkersConfig{Local: true, Binary: binary, GPUs: []int{0, 1}, DeviceMemory: map[int]int64{1: 64 << 20}}
	local, err := w.localWorkers("")
	if err != nil || len(local) != 3 {
		t.Fatalf("%+v, %v", local, err)
	}
	if len(local[0].Args) != 0 || len(local[1].Args) != 0 || !slices.Equal(local[2].Args, []string{"--device-memory-byte-size=67108864"}) {
		t.Errorf("the workers' arguments are %q, %q, %q", local[0].Args, local[1].Args, local[2].Args)
	}
}
