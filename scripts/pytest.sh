#!/usr/bin/env bash
# Runs the Python tests in two lots side by side: they wait for servers and clocks more than they compute. What the second
# lot says is shown when the first is through.
#   pytest.sh PYTHON [ARGS...]   of pytest, for both
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
log=$(mktemp)
export TERM=dumb
# A test that hangs shows where after four minutes; a lot that does not end is interrupted after twenty, for which the shell
# has made programs in the background deaf.
pytest() {
  timeout --foreground -s INT -k 60 1200 env --default-signal=INT "$python" -m pytest -q -rs --tb=short --durations=10 -p no:cacheprovider \
    -o faulthandler_timeout=240 -o tmp_path_retention_policy=failed "$@"
}
# Files with an Envoy and those that take about as long as all others are the second lot; a new file is in the first by itself.
second=(test/e2e/test_mesh*.py test/e2e/test_{stack,dashboards,tracing_otel,memory}.py test/deploy/test_*.py)
first=()
for file in test/*/test_*.py; do
  [[ " ${second[*]} " == *" $file "* ]] || first+=("$file")
done
SLUICE_TEST_PORTS=26000-32000 pytest "$@" "${second[@]}" >"$log" 2>&1 &
lot=$!
trap 'kill "$lot" 2>/dev/null; wait "$lot"; rm -f "$log"; exit 130' INT TERM
status=0
SLUICE_TEST_PORTS=20000-26000 pytest "$@" "${first[@]}" || status=$?
wait "$lot" || status=$?
echo "-- the second lot"
cat "$log"
rm -f "$log"
exit "$status"
