package nvml

import (
	"os"
	"testing"
)

func TestIdentifier(t *testing.T) {
	for _, tc := range []struct {
		ordinal int
		visible string
		index   int
		uuid    string
		ok      bool
	}{
		{2, "", 2, "", true},
		{1, "3,5", 5, "", true},
		{0, " GPU-1-2 ", 0, "GPU-1-2", true},
		{0, "1x", 0, "1x", true},
		{2, "3,5", 0, "", false},
		{1, "3,,5", 0, "", false},
		{0, "99999999999999999999", 0, "99999999999999999999", true},
	} {
		index, uuid, ok := identifier(tc.ordinal, tc.visible)
		if index != tc.index || uuid != tc.uuid || ok != tc.ok {
			t.Errorf("identifier(%d, %q) = %d, %q, %v; want %d, %q, %v", tc.ordinal, tc.visible, index, uuid, ok, tc.index, tc.uuid, tc.ok)
		}
	}
}

func TestOpenIsSilentWithoutGPU(t *testing.T) {
	g := Open(0, os.Getenv("CUDA_VISIBLE_DEVICES"))
	defer g.Close()
	if g == nil {
		return // no driver: that is what this test wants to see
	}
	s, err := g.State()
	if err != nil || s.GetMemoryTotalBytes() <= 0 {
		t.Errorf("State() = %v, %v; want figures of the GPU that is here", s, err)
	}
}
