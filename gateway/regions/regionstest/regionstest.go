// Package regionstest has workers for tests of clients' shared memory that are none:
// they read and write the files, without a mapping.
package regionstest

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// Workers fits infer.Regions. It fails the test where a slot is opened twice or closed
// without being open.
type Workers struct {
	t testing.TB

	// Fault, where it is set, is what OpenRegion says; Wait is what CloseRegion waits for.
	Fault error
	Wait  chan struct{}

	mu   sync.Mutex
	open map[uint32]*infer.Region
	max  int
}

// New makes workers without regions.
func New(t testing.TB) *Workers { return &Workers{t: t, open: map[uint32]*infer.Region{}} }

// OpenRegion implements infer.Regions.
func (w *Workers) OpenRegion(_ context.Context, r *infer.Region) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Fault != nil {
		return w.Fault
	}
	if w.open[r.Slot] != nil || r.Slot == 0 || r.Slot >= infer.MaxRegions {
		w.t.Errorf("slot %d is opened for '%s' and is '%v'", r.Slot, r.Name, w.open[r.Slot])
	}
	w.open[r.Slot] = r
	w.max = max(w.max, len(w.open))
	return nil
}

// CloseRegion implements infer.Regions.
func (w *Workers) CloseRegion(ctx context.Context, slot uint32) error {
	if w.Wait != nil {
		select {
		case <-w.Wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, slot)
	return nil
}

func (w *Workers) at(p infer.Place) (*infer.Region, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.open[p.Region]
	if r == nil || p.Offset < 0 || p.Size < 0 || p.Offset > r.Size-p.Size {
		w.t.Errorf("place %+v is in no open region", p)
		return nil, infer.Errorf(infer.Internal, "no such place")
	}
	return r, nil
}

// ReadPlace implements infer.Regions.
func (w *Workers) ReadPlace(_ context.Context, p infer.Place) (*infer.Buffer, error) {
	r, err := w.at(p)
	if err != nil {
		return nil, err
	}
	b := make([]byte, p.Size)
	if _, err := r.File.ReadAt(b, r.Offset+p.Offset); err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "shared memory region '%s' was truncated", r.Name)
	}
	return infer.NewBuffer(b, nil), nil
}

// WritePlace implements infer.Regions.
func (w *Workers) WritePlace(_ context.Context, p infer.Place, data []byte) error {
	r, err := w.at(p)
	if err != nil {
		return err
	}
	if int64(len(data)) > p.Size {
		w.t.Errorf("%d bytes are written to %+v", len(data), p)
	}
	_, err = r.File.WriteAt(data, r.Offset+p.Offset)
	return err
}

// Open counts the regions that are open.
func (w *Workers) Open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open)
}

// Registry is a registry over w in which every call comes from this host. The test closes
// it, and fails where a request still holds a region then.
func (w *Workers) Registry(cfg regions.Config) *regions.Registry {
	w.t.Helper()
	return w.RegistryOf(cfg, func(*infer.Envelope) bool { return true })
}

// RegistryOf is Registry with a word on which calls come from this host.
func (w *Workers) RegistryOf(cfg regions.Config, local func(*infer.Envelope) bool) *regions.Registry {
	w.t.Helper()
	r, err := regions.New(cfg, regions.Deps{Workers: w, Log: slog.New(slog.DiscardHandler), Local: local})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if n := r.InUse(); n != 0 {
			w.t.Errorf("%d references to regions are held at the end", n)
		}
		if err := r.Close(context.WithoutCancel(w.t.Context())); err != nil {
			w.t.Errorf("closing the regions: %v", err)
		}
		if n := w.Open(); n != 0 {
			w.t.Errorf("%d regions are open at the end", n)
		}
	})
	return r
}
