package gateway

import (
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
