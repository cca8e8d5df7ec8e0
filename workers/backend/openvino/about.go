package openvino

import (
	"path/filepath"
	"strings"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// Engine is the folder of OpenVINO among the engines.
const Engine = "openvino"

// kind is one of the backends that OpenVINO makes.
type kind struct {
	name    string
	formats []*worker.ModelFormat
	count   uint32              // of instances where a config says none
	rename  func(string) string // the names that configs have for tensors; nil: OpenVINO's
}

// native is OpenVINO's. Source: Triton's openvino_backend, whose default file is model.xml.
var native = kind{name: "openvino", formats: []*worker.ModelFormat{{Filename: "model.xml"}}}

// tensorflow is what stands for Triton's TensorFlow backend. Source: tensorflow_backend.
var tensorflow = kind{name: "tensorflow", count: 2, rename: nodeName, formats: []*worker.ModelFormat{
	{Platform: "tensorflow_savedmodel", Filename: "model.savedmodel", Kind: worker.ModelFormat_FOLDER},
	{Platform: "tensorflow_graphdef", Filename: "model.graphdef", Kind: worker.ModelFormat_FILE},
}}

// nodeName is a tensor's name as configs of TensorFlow's models have it: that of its node, whose first output is "name:0".
func nodeName(tensor string) string { return strings.TrimSuffix(tensor, ":0") }

// libraryIn is the path of the library of the C API, where there is one.
func libraryIn(engines string) string {
	dir := filepath.Join(engines, Engine, "openvino", "libs")
	found, err := filepath.Glob(filepath.Join(dir, "libopenvino_c.so.*"))
	if err != nil || len(found) == 0 {
		return filepath.Join(dir, "libopenvino_c.so")
	}
	return found[len(found)-1]
}

func (k *kind) about(library string) backend.Info {
	return backend.Info{Formats: k.formats, Placements: []*worker.Placement{{Kind: worker.Placement_CPU, Count: k.count}},
		Engine: &worker.Engine{Name: "OpenVINO", Path: library, Get: "make engine-" + Engine}}
}
