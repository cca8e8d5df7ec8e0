package workers_test

import (
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
)

// Instances of a backend that can are made at a time; nothing is left of those beside one that failed.
func TestSimultaneousInstances(t *testing.T) {
	var here sync.WaitGroup
	s := &scripted{info: backend.Info{Simultaneous: true}, making: func() {
		here.Done()
		here.Wait() // for the others
	}}
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: map[string]backend.Factory{"scripted": s.factory}}, 1<<20)
	r := loadRequest(1, &modelconfig.ModelConfig{Name: "m", Backend: "scripted"}, 0, 1, 2)
	s.failAt = 2
	here.Add(3)
	if _, err := g.client.Load(ctx(t), r); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	s.mu.Lock()
	for _, inst := range s.made {
		if !inst.closed {
			t.Error("an instance is left")
		}
	}
	if len(s.made) == 0 || s.closed != 1 {
		t.Errorf("%d instances were made, %d models closed", len(s.made), s.closed)
	}
	s.made, s.failAt = nil, 0
	s.mu.Unlock()
	here.Add(3)
	g.load(t, loadRequest(2, r.Config, 0, 1, 2))
}
