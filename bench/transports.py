#!/usr/bin/env python3
"""What our transports cost beside the library's: CPU of gateway and worker for each request, over HTTP and gRPC.

    transports.py [--rounds N] [--seconds S] [--only WORD[,WORD...]]

Two servers of the same build, one with --http-transport and --grpc-transport `sluice`, one with `library`; identity and
limits are off, metrics on, spans sampled at 1 % and sent to a receiver in this process that drops them. Points are an
identity model of 16 floats through the worker, another with 602 KB each way, the small network, and a hit of the response
cache. Slices are interleaved, the second server first in every other round; shown are medians and the middle half of ours.
Build before: make build && go build -o bin/loadgen ./bench/loadgen
"""
import argparse
import http.server
import os
import pathlib
import statistics
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run  # noqa: E402
import tracing  # noqa: E402

run.MODELS["identity_fp32"] = ("INPUT0", "1,16")
POINTS = [("identity_fp32", 1), ("identity_fp32", 8), ("identity_fp32", 64), ("echo", 1), ("echo", 8), ("mlp", 8), ("mlp", 32),
          ("mlp_cached", 8), ("mlp_cached", 32)]
TRANSPORTS = ("sluice", "library")


def measure(server, model, protocol, concurrency, seconds):
    before, cpu = run.counted(server, model), tracing.cpu_of(server.pid)
    got = run.loadgen(getattr(server, protocol), model, protocol, concurrency, seconds)
    spent, after = tracing.cpu_of(server.pid) - cpu, run.counted(server, model)
    return {**got, "cpu": 1e6 * spent / (after[0] - before[0]), "batch": (after[2] - before[2]) / max(1, after[1] - before[1])}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--only", default="")
    args = p.parse_args()
    words = [w for w in args.only.split(",") if w]
    points = [(m, proto, c) for m, c in POINTS for proto in ("http", "grpc")]
    points = [q for q in points if not words or any(w in " ".join(map(str, q)) for w in words)]
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), tracing.Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    servers, runs = {}, {}
    with tempfile.TemporaryDirectory() as own:
        echo = pathlib.Path(own) / "echo"
        (echo / "1").mkdir(parents=True)
        (echo / "config.pbtxt").write_text(run.ECHO)
        try:
            for transport in TRANSPORTS:
                servers[transport] = run.harness.Server(repositories=[run.REPOSITORIES / "sluice", own], flags=[
                    run.CACHE, f"--http-transport={transport}", f"--grpc-transport={transport}", "--trace-config=mode=opentelemetry",
                    "--trace-config=rate=100", f"--trace-config=opentelemetry,url=http://127.0.0.1:{sink.server_port}/v1/traces"])
            for n in range(args.rounds):
                for point in points:
                    for transport in TRANSPORTS if n % 2 == 0 else TRANSPORTS[::-1]:
                        runs.setdefault((point, transport), []).append(measure(servers[transport], *point, args.seconds))
        finally:
            for server in servers.values():
                server.stop()
            sink.shutdown()
    print("model, protocol, concurrency | CPU us | middle half | req/s | p50 us | batch | library: CPU us | req/s | p50 us")
    for point in points:
        ours, theirs = ({k: statistics.median(r[k] for r in runs[point, t]) for k in ("cpu", "per_second", "p50_us", "batch")} for t in TRANSPORTS)
        cpu = sorted(r["cpu"] for r in runs[point, "sluice"])
        print(" | ".join([" ".join(map(str, point)), f"{ours['cpu']:.1f}", f"{cpu[len(cpu) // 4]:.1f} … {cpu[-1 - len(cpu) // 4]:.1f}",
                          f"{ours['per_second']:.0f}", f"{ours['p50_us']:.0f}", f"{ours['batch']:.1f}", f"{theirs['cpu']:.1f}",
                          f"{theirs['per_second']:.0f}", f"{theirs['p50_us']:.0f}"]))
    print(f"load average at the end {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
