#!/usr/bin/env python3
"""What our transports cost beside the library's, and beside the original: CPU of the server for each request.

    transports.py [--original] [--driver perf] [--rounds N] [--seconds S] [--only WORD[,WORD...]]

Two servers of the same build, one with --http-transport and --grpc-transport `sluice`, one with `library`; identity and
limits are off, metrics on, spans sampled at 1 % and sent to a receiver in this process that drops them. Points are an
identity model of 16 floats through the worker, another with 602 KB each way, the small network, and a hit of the response
cache. --original adds tritonserver 2.51 with its metrics, its local cache and without traces, on the same configs, whose
backends are in C and in its own process: one that copies (bench/peer/identity.c; ours names a large input as its output), one around
the ONNX Runtime that our worker has (bench/peer/network.c).

`bare` is what is left when everything is left out (bench/machine/bare.c): one thread of C that answers with the request's
bytes, for the models that do that. What is above it is a server's own. --driver perf has perf_analyzer as the client (`make
peer`), for models of fixed shapes and without `bare`, which knows only ours.

Slices are interleaved, in another order each round; shown are medians over the rounds, with the middle half of ours and of
the shares, each of which is of one round. `aim` is the share that the project set out for, of figures that another, quicker
machine gave for the original; `slower` is how many times those the original takes here. Of the small network is shown, too,
what is left of the CPU without ONNX Runtime's own for an item at that batch size, taken each round in a bare loop. Before the table stands how slow this
machine is just now (bench/machine/machine.c, once a round), with the least and the most. `make bench-transports` builds what
this needs.
"""
import argparse
import http.server
import json
import os
import pathlib
import shutil
import statistics
import subprocess
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
ECHOES = ("identity_fp32", "echo")  # models that answer with what they are asked
# CPU us a request: what was asked of us, and what the original took on the machine where that was set.
AIMS = {("identity_fp32", "grpc", 8): (20, 100), ("identity_fp32", "grpc", 64): (10, 69), ("identity_fp32", "http", 8): (25, 72),
        ("identity_fp32", "http", 64): (20, 61), ("echo", "grpc", 8): (420, 882), ("echo", "http", 8): (370, 1313),
        ("mlp_cached", "grpc", 32): (6, 49), ("mlp_cached", "http", 32): (15, 43)}
OVERHEADS = {8: 45, 32: 30}  # of the small network, by concurrency: what was asked of us
MACHINE = {"syscall": "a system call", "loopback": "write and read on the loopback", "wake": "waking a core that rests, the waker",
           "woken": "the woken", "wake_latency": "until it runs", "turn": "there and back between two cores", "turn_cpu": "CPU of both",
           "sleep": "a sleep"}


def measure(server, model, protocol, concurrency, seconds, driver="loadgen"):
    before, cpu = run.counted(server, model), run.cpu_of(server.pid)
    got = run.DRIVERS[driver](getattr(server, protocol), model, protocol, concurrency, seconds)
    spent, after = run.cpu_of(server.pid) - cpu, run.counted(server, model)
    return {**got, "cpu": 1e6 * spent / (after[0] - before[0]), "batch": (after[2] - before[2]) / max(1, after[1] - before[1])}


def machine():
    return json.loads(subprocess.run([run.ROOT / "bin/machine"], check=True, capture_output=True, text=True, timeout=30).stdout)


class Bare:
    """bin/bare, which counts as a v2 server does."""

    def __init__(self):
        self.process = subprocess.Popen([run.ROOT / "bin/bare"], stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.http, self.grpc = (f"127.0.0.1:{self.process.stdout.readline().strip()}" for _ in range(2))

    def stop(self):
        self.process.kill()
        self.process.wait()


def theirs_of(folder, own):
    """Our models for the original: the same, but for the backend's name."""
    theirs = folder / "theirs"
    shutil.copytree(own, theirs)
    for model in ("identity_fp32", "mlp", "mlp_cached"):
        shutil.copytree(run.REPOSITORIES / "sluice" / model, theirs / model)
        config = theirs / model / "config.pbtxt"
        config.write_text(config.read_text().replace('backend: "onnxruntime"', 'backend: "network"'))
    return theirs


def servers_of(folder, original, sink):
    """The systems by name, started one by one: a dictionary that fills, so that those can be stopped that did start."""
    own = folder / "own"
    (own / "echo" / "1").mkdir(parents=True)
    (own / "echo" / "config.pbtxt").write_text(run.ECHO)
    servers = {}
    try:
        for transport in TRANSPORTS:
            servers[transport] = run.harness.Server(repositories=[run.REPOSITORIES / "sluice", own], flags=[
                run.CACHE, f"--http-transport={transport}", f"--grpc-transport={transport}", "--trace-config=mode=opentelemetry",
                "--trace-config=rate=100", f"--trace-config=opentelemetry,url=http://127.0.0.1:{sink.server_port}/v1/traces"])
        if original:
            servers["original"] = run.Original(theirs_of(folder, own))
        servers["bare"] = Bare()
    except BaseException:
        stop(servers)
        raise
    return servers


def stop(servers):
    for server in servers.values():
        server.stop()


def take(servers, points, args):
    """All runs: (point, system) -> the figures of each round; and each round's of the machine and of ONNX Runtime alone."""
    runs, figures, bare = {}, [], []
    for n in range(args.rounds):
        figures.append(machine())
        if any(model == "mlp" for model, _, _ in points):
            bare.append(run.bare_runs(0.2, ["mlp"]))
        for point in points:
            names = [s for s in servers if s != "bare" or point[0] in ECHOES and args.driver == "loadgen"]
            for system in names[n % len(names):] + names[:n % len(names)]:
                runs.setdefault((point, system), []).append(measure(servers[system], *point, args.seconds, args.driver))
    return runs, figures, run.middle(bare) if bare else {}


def half(values, form):
    """The middle half of some values, as text."""
    values = sorted(values)
    return f"{values[len(values) // 4]:{form}} … {values[-1 - len(values) // 4]:{form}}"


def spread(values):
    """The median of some microseconds, with the least and the most, as text."""
    form = ".1f" if max(values) < 5 else ".0f"
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def share(runs, point):
    """Ours of the original's CPU, round by round; the share that was aimed for; how much slower the original is here."""
    shares = [a["cpu"] / b["cpu"] for a, b in zip(runs[point, "sluice"], runs[point, "original"])]
    cells = [f"{statistics.median(shares):.2f}", half(shares, ".2f")]
    if point not in AIMS:
        return [*cells, "", ""]
    aim, there = AIMS[point]
    return [*cells, f"{aim / there:.2f} ({aim}/{there})", f"{statistics.median(b['cpu'] for b in runs[point, 'original']) / there:.1f}"]


def table(runs, points, original):
    """Rows of columns that stand below one another, the first of them names."""
    head = ["model, protocol, concurrency", "CPU us", "middle half", "req/s", "p50 us", "batch", "bare: CPU", "library: CPU", "req/s", "p50"]
    rows = [head + (["original: CPU", "req/s", "p50", "batch", "share", "middle half", "aim", "slower"] if original else [])]
    for point in points:
        at = {s: {k: f"{statistics.median(r[k] for r in runs[point, s]):.{1 if k in ('cpu', 'batch') else 0}f}"
                  for k in ("cpu", "per_second", "p50_us", "batch")} for s in (*TRANSPORTS, "original")[:3 if original else 2]}
        bare = statistics.median(r["cpu"] for r in runs[point, "bare"]) if (point, "bare") in runs else None
        rows.append([" ".join(map(str, point)), at["sluice"]["cpu"], half([r["cpu"] for r in runs[point, "sluice"]], ".1f"),
                     *(at["sluice"][k] for k in ("per_second", "p50_us", "batch")), f"{bare:.1f}" if bare else "", *(at["library"][k] for k in ("cpu", "per_second", "p50_us"))])
        if original:
            rows[-1] += [*at["original"].values(), *share(runs, point)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip() for r in rows)


def overheads(runs, points, systems, rows):
    """Lines: what the small network costs beside ONNX Runtime alone, whose rows are (batch, CPU us for each item, ...)."""
    lines = ["ONNX Runtime alone, CPU us an item: " + ", ".join(f"batch {b} {cpu:.0f}" for b, cpu, _ in rows)]
    for point in points:
        if point[0] != "mlp":
            continue
        over = {s: statistics.median(r["cpu"] - run.interpolate(rows, r["batch"]) for r in runs[point, s]) for s in systems}
        lines.append(f"overhead, {' '.join(map(str, point))}: " + ", ".join(f"{s} {v:.1f}" for s, v in over.items())
                     + f"; asked of us: {OVERHEADS[point[2]]}")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--original", action="store_true", help="beside tritonserver with a backend in C: `make peer` first")
    p.add_argument("--driver", choices=run.DRIVERS, default="loadgen")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--only", default="")
    args = p.parse_args()
    words = [w for w in args.only.split(",") if w]
    points = [(m, proto, c) for m, c in POINTS for proto in ("http", "grpc")]
    points = [q for q in points if not words or any(w in " ".join(map(str, q)) for w in words)]
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), tracing.Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        servers = servers_of(pathlib.Path(folder), args.original, sink)
        try:
            runs, figures, bare = take(servers, points, args)
        finally:
            stop(servers)
            sink.shutdown()
    print("this machine, us: " + ", ".join(f"{text} {spread([f[k] for f in figures])}" for k, text in MACHINE.items()))
    print(table(runs, points, args.original))
    if bare:
        print(overheads(runs, points, [s for s in servers if s != "bare"], bare["mlp"]))
    print(f"load average at the end {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
