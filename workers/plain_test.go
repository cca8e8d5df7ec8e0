//go:build !onnxruntime

package workers_test

// buildTags are those that the real worker is built with.
const buildTags = ""
