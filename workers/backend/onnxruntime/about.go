package onnxruntime

import (
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// about is what the backend says of itself, whatever library there is at path.
// Source: Triton's constants.h; two instances on the CPU are Triton's default for this
// backend, and optional inputs of models that batch are refused by Triton's, too.
func about(path string) backend.Info {
	return backend.Info{
		UnbatchedOptional: true,
		Placements:        []*worker.Placement{{Kind: worker.Placement_GPU}, {Kind: worker.Placement_CPU, Count: 2}},
		Engine:            &worker.Engine{Name: "ONNX Runtime", Path: path, Get: "make build"},
		Formats:           []*worker.ModelFormat{{Platform: "onnxruntime_onnx", Filename: "model.onnx", Default: true}},
	}
}
