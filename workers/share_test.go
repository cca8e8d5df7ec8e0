package workers_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
)

// A load that is like another uses its model again, which is closed with the last of
// them, whatever the order; one that is like nothing any more is an ordinary load.
func TestLoadsShareAModel(t *testing.T) {
	for _, order := range [][]uint64{{1, 2}, {2, 1}} {
		s := &scripted{}
		g := startLocal(t, workers.Config{}, scriptedDeps(s), 4<<20)
		g.hello(t, true)
		g.load(t, loadRequest(1, fp32Config(nil), 0))
		more := loadRequest(2, fp32Config(nil), 1, 2)
		more.Like = 1
		g.load(t, more)
		s.mu.Lock()
		if s.loads != 1 || len(s.made) != 3 {
			t.Errorf("%d loads and %d instances, want 1 and 3", s.loads, len(s.made))
		}
		s.mu.Unlock()
		unload(t, g, order[0])
		if n := s.closedModels(); n != 0 {
			t.Errorf("the model was closed after %d, though %d uses it", order[0], order[1])
		}
		unload(t, g, order[1])
		if n := s.closedModels(); n != 1 {
			t.Errorf("the model was closed %d times", n)
		}
		late := loadRequest(3, fp32Config(nil), 0)
		late.Like = 1
		g.load(t, late)
		s.mu.Lock()
		if s.loads != 2 {
			t.Errorf("%d loads, want 2: what it was like is gone", s.loads)
		}
		s.mu.Unlock()
		unload(t, g, 3)
		_, err := g.client.Unload(ctx(t), &worker.UnloadRequest{Handle: 3})
		wantCode(t, "a second unload", err, codes.NotFound)
	}
}
