#!/usr/bin/env bash
# Runs every fuzz test of the tree for a short time, two at a time. Each package is built once; what the engine finds lies
# where `go test -fuzz` keeps it: inputs that reach new code in Go's cache, inputs that fail in the package's testdata.
#   fuzz.sh [SECONDS]   for each (default 3)
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_CFLAGS=$(scripts/cflags.sh)
seconds=${1:-3}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
found=$(go env GOCACHE)/fuzz/$(go list -m)

# one BINARY FOLDER NAME: prints a line, and everything when the test fails.
one() {
  local out
  if out=$(cd "$2" && timeout -k 10 300 "$1" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "${seconds}s" -test.fuzzcachedir "$found/$2" -test.parallel 1 2>&1); then
    printf '   fuzz %s %s\n' "$2" "$3"
    return
  fi
  # The engine reports its own time limit as a failure when it strikes in the middle of an input.
  if [ "$(grep -c 'context deadline exceeded' <<<"$out")" = 1 ] && ! grep -q 'Failing input written' <<<"$out"; then
    printf '   fuzz %s %s (its time ended within an input)\n' "$2" "$3"
    return
  fi
  printf '   fuzz %s %s failed\n%s\n' "$2" "$3" "$out"
  return 1
}
export -f one
export seconds found

targets=$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cache cmd gateway infer proto tracing workers xds 2>/dev/null |
  sed -E 's|/[^/]*:func | |' | sort -u)
# A package's tests run while the next package is built. -trimpath: what the compiler makes is the same in every checkout.
cut -d' ' -f1 <<<"$targets" | uniq | while read -r folder; do
  binary=$bin/${folder//\//_}
  go test -c -trimpath -ldflags='-s -w' -tags onnxruntime -fuzz . -o "$binary" "./$folder" >&2 || { echo "$binary $folder FuzzNothing"; continue; }
  awk -v b="$binary" -v f="$folder" '$1 == f { print b, $1, $2 }' <<<"$targets"
done | xargs -P 2 -L 1 bash -c 'one "$@"' fuzz
