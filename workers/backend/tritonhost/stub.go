//go:build !cgo

package tritonhost

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

const unavailable = "this worker was built without cgo, and can't run Triton's backends"

// New makes the factory of a backend that loads nothing, since this build has no cgo.
func New(string) backend.Factory {
	return func(map[string]string) (backend.Backend, error) { return absent{}, nil }
}

type absent struct{}

func (absent) Info() backend.Info {
	info := about()
	info.Unavailable = unavailable
	return info
}

func (absent) Describe(context.Context, backend.Spec) (*backend.Description, error) {
	return nil, infer.Errorf(infer.Unavailable, unavailable)
}

func (absent) Load(context.Context, backend.Spec) (backend.Model, error) {
	return nil, infer.Errorf(infer.Unavailable, unavailable)
}

func (absent) Close() error { return nil }
