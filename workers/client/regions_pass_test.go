package client

import "testing"

// Descriptors of many calls that were given up before their worker heard of them keep
// nobody else's from it, and closing a region drops them.
func TestDescriptorsOfCallsGivenUp(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	mem := newShared(t, 4096)
	s := w.workers[0].session
	fill := func() (n int) {
		for ; n < 1<<14; n++ {
			if _, err := s.regions.send(mem.file); err != nil {
				return n
			}
		}
		t.Fatal("the socket takes any number of descriptors")
		return n
	}
	most := fill()
	openRegionOf(t, w, mem.region(1))
	fill()
	closeRegionOf(t, w, 1)
	if n := fill(); n < most {
		t.Errorf("after a region was closed there is room for %d descriptors, not for %d", n, most)
	}
}
