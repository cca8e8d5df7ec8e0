package httpapi

import (
	"context"
	"log/slog"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// noWorkers takes every region and does nothing with it.
type noWorkers struct{}

func (noWorkers) OpenRegion(context.Context, *infer.Region) error { return nil }
func (noWorkers) CloseRegion(context.Context, uint32) error       { return nil }
func (noWorkers) ReadPlace(context.Context, infer.Place) (*infer.Buffer, error) {
	return nil, infer.Errorf(infer.Unsupported, "nothing is read here")
}
func (noWorkers) WritePlace(context.Context, infer.Place, []byte) error { return nil }

// newRegions is a registry in which everybody is a caller of this host.
func newRegions() *regions.Registry {
	r, err := regions.New(regions.Config{}, regions.Deps{Workers: noWorkers{}, Log: slog.New(slog.DiscardHandler),
		Local: func(*infer.Envelope) bool { return true }})
	if err != nil {
		panic(err)
	}
	return r
}
