#!/usr/bin/env bash
# Runs every fuzz test of the tree for a short time, one after the other.
#   fuzz.sh [SECONDS]   for each (default 3)
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_CFLAGS=$(scripts/cflags.sh)
seconds=${1:-3}
failed=0
while IFS=: read -r file name; do
  printf '   fuzz %s %s\n' "$(dirname "$file")" "$name"
  if ! out=$(go test -tags onnxruntime "./$(dirname "$file")" -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" -parallel 2 2>&1); then
    # The engine reports its own time limit as a failure when it strikes in the middle of an input.
    if [ "$(grep -c 'context deadline exceeded' <<<"$out")" = 1 ] && ! grep -q 'Failing input written' <<<"$out"; then
      continue
    fi
    printf '%s\n' "$out"
    failed=1
  fi
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cache cmd gateway infer proto tracing workers xds 2>/dev/null | sed -E 's/:func /:/' | sort)
exit $failed
