//go:build onnxruntime_header

package ort

// The module below carries the C header of ONNX Runtime's API. This file is never
// built; it keeps the module's version in go.mod.
import _ "github.com/yalue/onnxruntime_go"
