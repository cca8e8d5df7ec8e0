#!/usr/bin/env python3
"""CPU of gateway and worker for one request, with and without the access log: rounds of all variants in turn, medians.

    make build && go build -o bin/loadgen ./bench/loadgen && .cache/venv/bin/python bench/accesslog.py [--rounds 9] [--seconds 1]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "test"))
import harness  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")


def cpu(server):
    """Seconds of CPU that a server and its workers have used."""
    total = 0
    for pid in [server.pid, *server.workers()]:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=16)
    a = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    variants = {"off": [], "all": [f"--access-log={folder.name}/all"], "1 of 100": [f"--access-log={folder.name}/some", "--access-log-config=successes=100"],
                "timings": ["--response-timings=always"], "principals": ["--metrics-config=principals=100"]}
    servers = {name: harness.Server(repositories=[harness.DEMO], flags=flags) for name, flags in variants.items()}
    spent = {name: [] for name in variants}
    try:
        for _ in range(a.rounds):
            for name, server in servers.items():
                before = cpu(server)
                done = subprocess.run([str(harness.ROOT / "bin/loadgen"), "-protocol", "http", "-address", server.http, "-model", "mlp", "-input", "INPUT0",
                                       "-shape", "1,512", "-concurrency", str(a.concurrency), "-warmup", "0s", "-duration", f"{a.seconds}s"],
                                      check=True, capture_output=True, text=True)
                spent[name].append((cpu(server) - before) / json.loads(done.stdout)["requests"] * 1e6)
    finally:
        for server in servers.values():
            server.kill()
    base = statistics.median(spent["off"])
    for name, figures in spent.items():
        m = statistics.median(figures)
        print(f"{name:12} {m:7.1f} us/request  {(m - base):+6.1f} us  {100 * (m - base) / base:+5.1f} %   of {len(figures)} rounds: {min(figures):.1f} to {max(figures):.1f}")
    folder.cleanup()


if __name__ == "__main__":
    main()
