#!/usr/bin/env bash
# Builds the library that Triton's backends link (workers/backend/tritonhost/library).
#   tritonserver.sh OUT    OUT: the file, by the name libtritonserver.so
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../workers/backend/tritonhost/library"
mkdir -p "${out%/*}"
"${CC:-cc}" -std=c11 -O2 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -shared -Wl,-soname,libtritonserver.so \
  -Wl,-z,defs -o "$out.new" ./*.c -ldl
mv "$out.new" "$out"
