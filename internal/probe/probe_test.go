package probe

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestReacts(t *testing.T) {
	listen := func(name string) (net.Listener, string) {
		at := filepath.Join(t.TempDir(), name)
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // it may be closed by then
		return l, at
	}
	ask := func(at string, limit time.Duration) error {
		ctx, stop := context.WithTimeout(t.Context(), limit)
		defer stop()
		return Reacts(ctx, "unix", at)
	}
	living, at := listen("living")
	go func() {
		for {
			c, err := living.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1)) // the end
			_ = c.Close()
		}
	}()
	if err := ask(at, 20*time.Second); err != nil {
		t.Errorf("a server that lives: %v", err)
	}
	_, frozen := listen("frozen")
	if err := ask(frozen, 20*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one that stands still: %v", err)
	}
	if err := Reacts(t.Context(), "unix", frozen); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one that stands still, without a deadline: %v", err)
	}
	if err := ask(at+"x", 20*time.Second); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}
