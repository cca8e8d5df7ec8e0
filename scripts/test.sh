#!/usr/bin/env bash
# Runs everything that CI runs: make test. What the tests stand on is fetched while the first stages compile. A stage that
# fails keeps no later one from running; how long each took and which failed stands at the end, and decides the exit status.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
log=$(mktemp)
report=()
status=0
begin=$SECONDS

# spent puts the seconds that all processes waited for so far have computed into cpu.
spent() {
  times >"$log.times"
  cpu=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' "$log.times")
}

# stage NAME COMMAND...
stage() {
  local name=$1 at=$SECONDS result=ok cpu before
  shift
  spent
  before=$cpu
  echo "== $name"
  "$@" || { result=failed; status=1; echo "== $name failed"; }
  spent
  report+=("$(printf '%5d s %5d s of CPU  %-6s %s' $((SECONDS - at)) $((cpu - before)) "$result" "$name")")
}

# What lies under .cache/ and models/; last what is the most to compile.
fetch() {
  make runtime engine-treelite engine-openvino redis envoy prometheus venv-test venv-tools models analyzer interop jaeger || return
  mkdir -p .cache/deploy
  local tool
  for tool in compose kustomize; do # test/deploy builds them too, and then finds them built
    go build -C test/deploy/$tool -o "$PWD/.cache/deploy/$tool" . || return
  done
}
fetched() {
  wait "$fetching"
  local result=$?
  cat "$log"
  return $result
}

# One setting for both: vet and the tests then share what the compiler makes, and vet need not run twice.
raced() { CGO_ENABLED=1 CGO_CFLAGS="$(scripts/cflags.sh)" go "$@"; }
vet() { make headers && raced vet -race -tags onnxruntime ./...; }
# test/arch reads the whole tree, which takes five times as long under the race detector, and has run by then.
go_tests() {
  local packages
  packages=$(raced list -tags onnxruntime ./... | grep -v '/test/arch$') || return
  # Those that take longest begin first, so that none is alone at the end. The race detector lets each program wait a second
  # before it ends, worker processes of tests too, for goroutines that go on; there are none: internal/leak looks.
  packages=$(grep -E '/(gateway/h2|workers/client)$' <<<"$packages"; grep -vE '/(gateway/h2|workers/client)$' <<<"$packages")
  # shellcheck disable=SC2086 # one word for each package
  GORACE=atexit_sleep_ms=0 raced test -tags onnxruntime -race -vet=off -timeout 300s -json $packages | "$PYTHON" scripts/gotest.py
}
# loadgen, soak and callers as bin/sluice is built, so that they share what the compiler makes.
build() { make build && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/ ./bench/loadgen ./test/soak ./test/callers; }

fetch >"$log" 2>&1 &
fetching=$!
trap 'kill "$fetching" 2>/dev/null; rm -f "$log" "$log.times"' EXIT
trap 'exit 130' INT TERM # a stage that ends by itself on Ctrl-C must not be followed by the next
stage "format" make fmt-check
stage "layout, comments, sizes (test/arch); syntax of Python and shell files" make lint
stage "go vet" vet
stage "what the tests stand on" fetched
stage "generated code" make generate-check
stage "build" build
stage "go test -race" go_tests
stage "fuzz, 2 s each" scripts/fuzz.sh 2
stage "clients and faults against the built binaries (test/conformance, test/e2e, test/chaos, test/deploy)" scripts/pytest.sh .cache/venv/bin/python
echo "== $((SECONDS - begin)) s in all"
printf '%s\n' "${report[@]}"
exit $status
