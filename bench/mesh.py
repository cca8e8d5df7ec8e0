#!/usr/bin/env python3
"""Measures how calls are shared between three gateways behind one Envoy, one of which is slow or busy; prints a table.

    mesh.py [--seconds S] [--rounds N] [--concurrency C] [--only WORD[,WORD...]]

Each gateway serves one model with one instance, which takes 20 ms for a request (the identity backend, waiting).
  even   all three are alike
  slow   the third takes 200 ms
  cost   all three answer at once, and there is one caller: what a policy costs a call
  busy   the third also answers other clients, who call it past Envoy as fast as two of them can
Policies: round_robin and least_request are Envoy's own; load is its round robin weighted by what the gateways report;
picker is the endpoint picker, round robin behind it. bin/loadgen calls in a closed loop; shown is the median of the rounds.
`make build envoy` and `go build -o bin/loadgen ./bench/loadgen` build what this needs.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test" / "e2e")]

import harness  # noqa: E402
from mesh import Mesh, missing  # noqa: E402

CONFIG = """backend: "identity"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
"""
CASES, PROTOCOLS = ("even", "slow", "busy", "cost"), ("http", "grpc")
POLICIES = ("round_robin", "least_request", "load", "picker")


def repository(folder, delay):
    (folder / "work" / "1").mkdir(parents=True)
    (folder / "work" / "config.pbtxt").write_text(CONFIG.format(delay=delay))
    return folder


def loadgen(address, protocol, concurrency, seconds, **options):
    return subprocess.Popen([ROOT / "bin" / "loadgen", f"-address={address}", f"-protocol={protocol}", "-model=work", "-shape=1,64",
                             f"-concurrency={concurrency}", f"-duration={seconds}s", "-warmup=1500ms", *options.pop("flags", ())],
                            stdout=subprocess.PIPE, text=True, **options)


def policy(m, name):
    balance = "round_robin" if name == "picker" else name
    m.change(upstream={"balance": balance, "health_interval": "500ms"}, services={"picker": {}} if name == "picker" else {})
    want = {"picker": "override_host", "load": "client_side_weighted"}.get(name, name)

    def there():
        text = m.admin("/config_dump?resource=dynamic_active_clusters")
        others = [w for w in ("override_host", "client_side_weighted", "least_request") if w != want]
        return want in text and not any(f"load_balancing_policies.{w}" in text for w in others)
    harness.wait_for(there, 15, f"{name} in Envoy")
    for cluster in ("http/default", "grpc/default"):
        m.settled(cluster, 3)


def measure(m, protocol, args, case):
    hog = loadgen(m.gateways[2].grpc, "grpc", 2, args.seconds + 1.5) if case == "busy" else None
    out, _ = loadgen(m.http, protocol, 1 if case == "cost" else args.concurrency, args.seconds).communicate(timeout=args.seconds + 60)
    if hog:
        hog.communicate(timeout=60)
    r = json.loads(out)
    if r["errors"]:
        sys.exit(f"{r['errors']} calls failed: {r['first_error']}")
    return r["per_second"], r["p50_us"] / 1000, r["p99_us"] / 1000


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--concurrency", type=int, default=6)
    p.add_argument("--only", default="")
    args = p.parse_args()
    if reason := missing():
        sys.exit(reason)
    only = args.only.split(",")
    cases, protocols, policies = ([x for x in all_of if x in only] or all_of for all_of in (CASES, PROTOCOLS, POLICIES))
    print(f"{'case':6} {'protocol':9} {'policy':14} {'calls/s':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for case in cases:
        rows = {}
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
            delays = {"slow": (20, 20, 200), "cost": (0, 0, 0)}.get(case, (20, 20, 20))
            gateways = [{"repositories": [repository(pathlib.Path(folder) / str(i), d)], "flags": ["--load-report=text"]}
                        for i, d in enumerate(delays)]
            m = Mesh(gateways=gateways)
            try:
                for _ in range(args.rounds):
                    for name in policies:
                        policy(m, name)
                        for protocol in protocols:
                            rows.setdefault((protocol, name), []).append(measure(m, protocol, args, case))
            finally:
                m.close()
        for (protocol, name), results in sorted(rows.items(), key=lambda r: (PROTOCOLS.index(r[0][0]), POLICIES.index(r[0][1]))):
            rate, p50, p99 = (statistics.median(x) for x in zip(*results))
            print(f"{case:6} {protocol:9} {name:14} {rate:8.0f} {p50:8.2f} {p99:8.2f}", flush=True)


if __name__ == "__main__":
    main()
