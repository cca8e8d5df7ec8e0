package workers_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-serve/sluice/workers"
)

// A worker that stands still is listened for by the kernel, and does not live.
func TestProbeOfAFrozenWorker(t *testing.T) {
	l := must(net.Listen("unix", filepath.Join(t.TempDir(), "worker")))(t)
	defer l.Close()
	if err := workers.Probe(t.Context(), "unix:"+l.Addr().String()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a timeout", err)
	}
}

// A probe says whether somebody listens, and the worker's log does not tell of it.
func TestProbe(t *testing.T) {
	for name, address := range map[string]string{"TCP": "127.0.0.1:0", "Unix": "unix:" + filepath.Join(t.TempDir(), "worker")} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer // read after the worker has ended
			w := must(workers.New(workers.Config{Listen: address, Insecure: true},
				workers.Deps{Log: slog.New(slog.NewTextHandler(&log, nil)), Backends: identityOnly()}))(t)
			c, stop := context.WithCancel(t.Context())
			at, done := make(chan net.Addr, 1), make(chan error, 1)
			go func() { done <- w.Run(c, func(a net.Addr) { at <- a }) }()
			there := (<-at).String()
			if name == "Unix" {
				there = "unix:" + there
			}
			for range 3 {
				if err := workers.Probe(t.Context(), there); err != nil {
					t.Error(err)
				}
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := workers.Probe(t.Context(), there); err == nil {
				t.Error("nobody listens, and the probe does not say so")
			}
			if log.Len() > 0 {
				t.Errorf("the log tells of probes: %s", &log)
			}
		})
	}
}
