#!/usr/bin/env bash
# Prints CGO_CFLAGS: where ONNX Runtime's C header lies (the Go module that carries it).
cd "$(dirname "$0")/.." && echo "-O2 -I$(go list -m -f '{{.Dir}}' github.com/yalue/onnxruntime_go)"
