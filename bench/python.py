#!/usr/bin/env python3
"""Measures Python models in sluice beside the same models in Triton's Python backend.

    python.py [--quick] [--rounds N] [--seconds S] [--answers N] [--systems sluice,triton]

The models are bench/python_models, served unchanged by both. Points are interleaved and shown as medians of the rounds:
  CPU     user and system time of all processes of the server, Python's among them, us for each request (or streamed answer)
  ratio   ours by Triton's
  ready   from the start of the server with one model to its first "ready", ms of wall time, and its CPU until then
"""
import argparse
import pathlib
import queue
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np
import tritonclient.grpc as client

import run

MODELS = pathlib.Path(__file__).with_name("python_models")
POINTS = [("py_identity", "http", 1), ("py_identity", "http", 8), ("py_identity", "http", 32), ("py_identity", "grpc", 1),
          ("py_identity", "grpc", 32), ("py_call", "http", 1), ("py_call", "http", 8), ("py_image", "http", 1), ("py_image", "http", 8)]
run.MODELS.update(py_identity=("INPUT0", "1,16"), py_call=("INPUT0", "1,16"), py_image=("INPUT0", "1,150528"))


def ours(repository):
    return run.harness.Server(repositories=[repository], flags=[f"--backend-config=python,python={sys.executable}"])


SYSTEMS = {"sluice": ours, "triton": run.Original}


def streamed(server, answers):
    """One stream of so many answers: CPU us and answers a second."""
    came = queue.Queue()
    with client.InferenceServerClient(server.grpc) as c:
        c.start_stream(lambda result, error: came.put((result, error)))
        given = client.InferInput("N", [1], "INT32")
        given.set_data_from_numpy(np.array([answers], np.int32))
        cpu, begin = run.cpu_of(server.pid), time.monotonic()
        c.async_stream_infer("py_stream", [given])
        for _ in range(answers):
            result, error = came.get(timeout=60)
            if error is not None:
                raise RuntimeError(str(error))
        spent, wall = run.cpu_of(server.pid) - cpu, time.monotonic() - begin
        c.stop_stream()
    return {"cpu_us": 1e6 * spent / answers, "per_second": answers / wall}


def until_ready(system):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODELS / "py_identity", pathlib.Path(folder) / "py_identity")
        begin = time.monotonic()
        server = SYSTEMS[system](pathlib.Path(folder))
        try:
            return {"cpu_us": 1e6 * run.cpu_of(server.pid), "ms": 1e3 * (time.monotonic() - begin)}
        finally:
            server.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="one round of 1 s")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--answers", type=int, default=20000, help="of the stream")
    p.add_argument("--systems", default="sluice,triton")
    args = p.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.answers = 1, 1, 5000
    systems = args.systems.split(",")
    taken = {}
    for _ in range(args.rounds):
        for s in systems:
            taken.setdefault(("ready", s), []).append(until_ready(s))
    servers = {s: SYSTEMS[s](MODELS) for s in systems}
    try:
        for _ in range(args.rounds):
            for model, protocol, n in POINTS:
                for s, server in servers.items():
                    got = run.measure(server, "loadgen", model, protocol, n, args.seconds)
                    taken.setdefault((f"{model} {protocol} {n}", s), []).append(got)
            for s, server in servers.items():
                taken.setdefault(("py_stream grpc 1, an answer", s), []).append(streamed(server, args.answers))
    finally:
        for server in servers.values():
            server.stop()
    middle = {k: {f: statistics.median(r[f] for r in rounds) for f in rounds[0]} for k, rounds in taken.items()}
    print(f"{'point':<28} {'system':<8} {'req/s':>9} {'p50 us':>8} {'batch':>6} {'CPU us':>8} {'ratio':>6}")
    for point in dict.fromkeys(k[0] for k in middle):
        for s in systems:
            m = middle[point, s]
            ratio = f"{m['cpu_us'] / middle[point, 'triton']['cpu_us']:.2f}" if s != "triton" and "triton" in systems else ""
            wall = f"{m['ms']:.0f} ms" if "ms" in m else f"{m['per_second']:.0f}"
            print(f"{point:<28} {s:<8} {wall:>9} {m.get('p50_us', 0):>8.0f} {m.get('batch', 0):>6.1f} {m['cpu_us']:>8.0f} {ratio:>6}")


if __name__ == "__main__":
    main()
