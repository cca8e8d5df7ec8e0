package workers

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// TestLoadAfterItsUnload begins no load whose caller has given it up: the unload that follows may have been answered
// before the load's goroutine ran, and the gateway gives the mailboxes to others then.
func TestLoadAfterItsUnload(t *testing.T) {
	asked := false
	ours, theirs := net.Pipe()
	w, err := New(Config{Listen: "127.0.0.1:0", Insecure: true}, Deps{Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Backends: map[string]backend.Factory{"mine": func(map[string]string) (backend.Backend, error) {
			asked = true
			return nil, infer.Errorf(infer.Unsupported, "no backend")
		}}})
	if err != nil {
		t.Fatal(err)
	}
	c := newConnection(w, ours, nil)
	ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}))
	s := &service{worker: w}
	if _, err := s.Unload(ctx, &worker.UnloadRequest{Handle: 7}); err == nil {
		t.Fatal("a handle that was never loaded was unloaded")
	}
	cancel()
	_, err = s.Load(ctx, &worker.LoadRequest{Handle: 7, Model: "m", Version: 1, ModelDir: "/m", ModelFile: "/m/1/model",
		Config: &configpb.ModelConfig{Name: "m", Backend: "mine"}, Instances: []*worker.InstanceSpec{{Name: "m_0"}}})
	if err == nil || asked || len(c.models) != 0 {
		t.Errorf("got %v, the backend was asked: %t, %d models", err, asked, len(c.models))
	}
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
}
