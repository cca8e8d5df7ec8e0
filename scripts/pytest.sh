#!/usr/bin/env bash
# Runs the Python tests in two lots side by side: they wait for servers and clocks more than they compute. What the second
# lot says is shown when the first is through. Its files are shared out as the lots come to them.
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
# The first lot takes files from the beginning, the second from the end, until they meet (test/lots.py). Those with an Envoy stand
# at the end, one lot has them; a new file is among the others by itself. Short ones stand where both meet.
last=(test/e2e/test_mesh_{limits,bounds}.py test/e2e/test_{tracing_otel,memory}.py test/e2e/test_mesh_identity.py test/e2e/test_mesh.py
  test/deploy/test_*.py test/e2e/test_{stack,dashboards}.py test/chaos/test_*.py test/e2e/test_mesh_{routing,faults}.py)
files=()
for file in test/{conformance,interop,e2e}/test_*.py test/*/test_*.py; do
  [[ " ${last[*]} ${files[*]} " == *" $file "* ]] || files+=("$file")
done
files+=("${last[@]}")
SLUICE_TEST_TAKEN=$(mktemp -d)
export SLUICE_TEST_TAKEN
SLUICE_TEST_LOT=last SLUICE_TEST_PORTS=26000-32000 pytest "$@" "${files[@]}" >"$log" 2>&1 &
lot=$!
trap 'rm -rf "$log" "$SLUICE_TEST_TAKEN"' EXIT
trap 'kill "$lot" 2>/dev/null; wait "$lot"; exit 130' INT TERM
status=0
SLUICE_TEST_LOT=first SLUICE_TEST_PORTS=20000-26000 pytest "$@" "${files[@]}" || status=$?
wait "$lot" || status=$?
echo "-- the second lot"
cat "$log"
exit "$status"
