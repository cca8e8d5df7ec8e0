#!/usr/bin/env bash
# Regenerates the Go code of proto/. protoc comes from the grpcio-tools wheel of the
# tool environment (see requirements/tools.txt), the plugins from go.mod's tools.
#   proto/generate.sh          writes the generated files
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.cache/venv/bin/python}
plugins=$PWD/.cache/protoc-plugins
mkdir -p "$plugins"
go build -o "$plugins/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
PATH=$plugins:$PATH "$PYTHON" -m grpc_tools.protoc -I. \
  --go_out=. --go_opt=module=github.com/sluice-serve/sluice \
  --go-grpc_out=. --go-grpc_opt=module=github.com/sluice-serve/sluice \
  proto/modelconfig/model_config.proto proto/inference/grpc_service.proto proto/worker/worker.proto proto/admin/admin.proto proto/mesh/mesh.proto

# For workers in other languages that read descriptors at run time, as examples/workers/python.
"$PYTHON" -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=examples/workers/python/worker.binpb proto/worker/worker.proto
