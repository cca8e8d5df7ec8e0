//go:build !cgo

package nvml

import "github.com/sluice-serve/sluice/proto/worker"

// GPU is one GPU; this build finds none.
type GPU struct{}

// Open finds nothing in a build without cgo.
func Open(int, string) *GPU { return nil }

// Close does nothing.
func (*GPU) Close() {}

// State is not called: there is no GPU.
func (*GPU) State() (*worker.DeviceState, error) { return nil, nil }
