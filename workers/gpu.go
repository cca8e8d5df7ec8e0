package workers

import (
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/internal/nvml"
)

// OpenGPU finds what reads the state of a GPU, for Deps.GPU; visible is the value of
// CUDA_VISIBLE_DEVICES. It is nil where the device is no GPU or no driver tells. The
// caller calls done when the worker has ended.
func OpenGPU(d Device, visible string) (state func() (*worker.DeviceState, error), done func()) {
	if !d.GPU {
		return nil, func() {}
	}
	gpu := nvml.Open(d.Index, visible)
	if gpu == nil {
		return nil, func() {}
	}
	return gpu.State, gpu.Close
}
