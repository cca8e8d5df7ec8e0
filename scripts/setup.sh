#!/usr/bin/env bash
# Lays down under .cache/ what the build and the tests stand on. Each part is skipped when it is there already.
#   setup.sh venv NAME...   .cache/venv with requirements/NAME.txt (hashes required)
#   setup.sh runtime        .cache/onnxruntime/lib: ONNX Runtime's shared library out of its wheel
#   setup.sh models         models/: the demo repository; .cache/test-models: those of the tests
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
venv=.cache/venv
say() { printf '== %s\n' "$*"; }
# One line for each package that pip fetches; everything when it fails.
quietly() {
  mkdir -p .cache
  if ! "$@" 2>&1 | tee .cache/pip.log | sed -un -E 's/^ *(Downloading|Using cached) ([^ ]*\/)?([^ \/]+\.whl).*(\([^)]*\)).*/   \3 \4/p'; then
    cat .cache/pip.log >&2
    return 1
  fi
}

venv() {
  if [ ! -x $venv/bin/python ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON")'
    say "Python environment $venv ($("$PYTHON" --version))"
    "$PYTHON" -m venv $venv
  fi
  local name stamp
  for name in "$@"; do
    stamp=$venv/.$name-$(sha256sum <"requirements/$name.txt" | cut -c1-16)
    [ -e "$stamp" ] && continue
    say "Python packages of requirements/$name.txt ($(grep -c == "requirements/$name.txt"))"
    quietly $venv/bin/python -m pip --disable-pip-version-check install --no-deps --only-binary=:all: --require-hashes -r "requirements/$name.txt"
    rm -f "$venv/.$name-"*
    touch "$stamp"
  done
}

wheels() {
  local stamp
  stamp=.cache/wheels/.$(sha256sum <requirements/wheels.txt | cut -c1-16)
  [ -e "$stamp" ] && return
  say "wheels of ONNX Runtime and of the demo models (66 MB)"
  rm -rf .cache/wheels
  mkdir -p .cache/wheels
  quietly "$PYTHON" -m pip --disable-pip-version-check download --no-deps --ignore-requires-python --only-binary=:all: --require-hashes -d .cache/wheels -r requirements/wheels.txt
  touch "$stamp"
}

runtime() {
  wheels
  local lib=.cache/onnxruntime/lib wheel
  wheel=$(echo .cache/wheels/onnxruntime-*.whl)
  [ $lib/.stamp -nt "$wheel" ] && return
  say "ONNX Runtime's shared library into $lib"
  mkdir -p $lib
  "$PYTHON" - "$wheel" $lib <<'PY'
import os, shutil, sys, zipfile
wheel, lib = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    for name in z.namelist():
        base = os.path.basename(name)
        if base.startswith("libonnxruntime") and ".so" in base:
            with z.open(name) as source, open(os.path.join(lib, base + ".part"), "wb") as target:
                shutil.copyfileobj(source, target)
            os.replace(os.path.join(lib, base + ".part"), os.path.join(lib, base))
            if base.startswith("libonnxruntime.so."):
                link = os.path.join(lib, "libonnxruntime.so.1")
                if os.path.lexists(link):
                    os.remove(link)
                os.symlink(base, link)
PY
  touch $lib/.stamp
}

models() {
  local stamp
  stamp=.cache/.models-$(cat scripts/make_models.py scripts/*graphs.py requirements/wheels.txt examples/models/*/config.pbtxt | sha256sum | cut -c1-16)
  [ -e "$stamp" ] && [ -d models ] && [ -d .cache/test-models ] && return
  venv models
  wheels
  say "model repositories: models/ (demo), .cache/test-models"
  $venv/bin/python scripts/make_models.py demo models .cache/wheels
  $venv/bin/python scripts/make_models.py test .cache/test-models >.cache/models.log
  rm -f .cache/.models-*
  touch "$stamp"
}

case ${1:-} in
venv) shift; venv "$@" ;;
runtime) runtime ;;
models) models ;;
*) sed -n 2,5p "$0"; exit 2 ;;
esac
