#!/usr/bin/env python3
"""Measures sluice beside the original and beside ONNX Runtime alone; prints tables, writes bench/out/.

    run.py [--quick] [--rounds N] [--seconds S] [--only WORD[,WORD...]] [--systems sluice,original] [--drivers loadgen,perf]

A point is a system, model, protocol, concurrency and driver. Points are interleaved: what is compared is measured one
after the other, and all of it again in each round; shown is the median of the rounds. Drivers are bin/loadgen, which
sends prebuilt bytes, and perf_analyzer. Columns:
  batch     rows in an execution as the server's statistics count them
  CPU       user and system time of all processes of the server, us for each request that its statistics count
  overhead  (of mlp_cached, whose hits compute nothing: the same as CPU)
            that, less ONNX Runtime's CPU for each item at that batch size in a bare loop (bin/ort, interpolated)
  shm       (a protocol) HTTP with tensors in shared memory that the driver has registered
  other     cores that were busy in neither server nor driver: high ones say that the point is noise
The original is tritonserver 2.51 with its Python backend, the one backend that a package brings: its models run the same
files in onnxruntime. `make bench` builds what this needs.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test"))

import harness  # noqa: E402
import picture  # noqa: E402

HZ = os.sysconf("SC_CLK_TCK")
MODELS = {"mlp": ("INPUT0", "1,512"), "mlp_cached": ("INPUT0", "1,512"), "image_mean": ("IMAGE", "1,3,224,224"), "echo": ("INPUT0", "1,150528")}
# What clients' shared memory saves: 602 KB in, and of echo as much out, by HTTP's binary extension and by regions (shm).
# echo is sluice's own identity backend, which copies its input once between regions, and names it as its output otherwise.
SHARED = [("image_mean", "shm"), ("echo", "http"), ("echo", "shm")]
ECHO = """name: "echo"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 150528 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 150528 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
BATCHES = {"mlp": "1,2,4,8,16,32", "image_mean": "1,2,4,8"}
# Both keep answers of mlp_cached: its requests are all alike, so what is measured are hits.
CACHE = "--cache-config=local,size=67108864"
REPOSITORIES = ROOT / ".cache" / "bench-models"


class Original:
    """The real server on free ports; the same attributes as harness.Server."""

    def __init__(self, repository=REPOSITORIES / "peer"):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        self.http, self.grpc = (f"127.0.0.1:{p}" for p in ports[:2])
        env = dict(os.environ, HTTP_PORT=str(ports[0]), GRPC_PORT=str(ports[1]), METRICS_PORT=str(ports[2]))
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([ROOT / "scripts/peer.sh", "serve", repository, CACHE], env=env, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        self.pid = self.process.pid
        end = time.monotonic() + 120
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                sys.exit("the original does not start:\n" + self.log.read()[-3000:])
            time.sleep(0.1)

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.http}/v2/health/ready", timeout=5):
                return True
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(45)
        except subprocess.TimeoutExpired:
            self.process.kill()


def cpu_of(pid):
    """Seconds that a process and its descendants have computed, threads that have ended too, by the nanosecond: the CPU clock
    that Linux gives to every process, whose number is made of the process id."""
    total = 0.0
    for p in [pid, *harness.descendants(pid)]:
        try:
            total += time.clock_gettime(~p << 3 | 2)
        except OSError:
            pass
    return total


def busy():
    """Seconds that all cores together have been busy."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return (sum(v[:8]) - v[3] - v[4]) / HZ


def children():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def counted(server, model):
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/stats", timeout=10) as r:
        s = json.load(r)["model_stats"][0]
    return int(s["inference_stats"]["success"]["count"]), int(s["execution_count"]), int(s["inference_count"])


def loadgen(address, model, protocol, concurrency, seconds):
    name, shape = MODELS[model]
    regions = ["-shared"] if protocol == "shm" else []
    if regions and model == "echo":
        regions += ["-output-bytes", str(4 * 150528)]
    run = subprocess.run([ROOT / "bin/loadgen", "-protocol", "http" if regions else protocol, "-address", address, "-model", model,
                          "-input", name, "-shape", shape, "-concurrency", str(concurrency), "-duration", f"{seconds}s", *regions],
                         capture_output=True, text=True, timeout=seconds + 60)
    if run.returncode:
        raise RuntimeError(run.stderr.strip())
    r = json.loads(run.stdout)
    if r["errors"]:
        raise RuntimeError(f"{r['errors']} errors: {r['first_error']}")
    return {k: r[k] for k in ("per_second", "p50_us", "p99_us")}


def perf(address, model, protocol, concurrency, seconds):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "r.csv")
        run = subprocess.run([ROOT / "scripts/peer.sh", "pa", "-m", model, "-i", protocol, "-u", address, "-b", "1",
                              "--concurrency-range", f"{concurrency}:{concurrency}", "-p", str(int(seconds * 500)), "-s", "999",
                              "-r", "3", "--verbose-csv", "-f", out], capture_output=True, text=True, timeout=seconds * 10 + 60)
        if not os.path.exists(out):
            raise RuntimeError((run.stdout + run.stderr).strip()[-300:])
        with open(out) as f:
            row = next(csv.DictReader(f))
    return {"per_second": float(row["Inferences/Second"]), "p50_us": float(row["p50 latency"]), "p99_us": float(row["p99 latency"])}


DRIVERS = {"loadgen": loadgen, "perf": perf}


def measure(server, driver, model, protocol, concurrency, seconds):
    address = server.grpc if protocol == "grpc" else server.http
    n0, x0, i0 = counted(server, model)
    s0, b0, c0, t0 = cpu_of(server.pid), busy(), children(), time.monotonic()
    got = DRIVERS[driver](address, model, protocol, concurrency, seconds)
    wall, spent, load, client = time.monotonic() - t0, cpu_of(server.pid) - s0, busy() - b0, children() - c0
    n1, x1, i1 = counted(server, model)
    return {**got, "cpu_us": 1e6 * spent / max(1, n1 - n0), "batch": (i1 - i0) / max(1, x1 - x0),
            "other": max(0.0, (load - spent - client) / wall)}


def bare_runs(seconds, models=tuple(BATCHES)):
    """ONNX Runtime alone: model -> [(batch, CPU us per item, wall us per item)]."""
    found = {}
    for model in models:
        run = subprocess.run([ROOT / "bin/ort", "-batches", BATCHES[model], "-seconds", str(seconds),
                              REPOSITORIES / "sluice" / model / "1" / "model.onnx"], capture_output=True, text=True, timeout=120)
        if run.returncode:
            sys.exit(f"bin/ort: {run.stderr}")
        found[model] = [(r["batch"], r["cpu_us_per_item"], r["wall_us_per_item"]) for r in json.loads(run.stdout)["results"]]
    return found


def middle(rounds):
    """The median of several bare_runs."""
    return {m: [(row[0], *(statistics.median(r[m][i][k] for r in rounds) for k in (1, 2))) for i, row in enumerate(rounds[0][m])]
            for m in rounds[0]}


def interpolate(rows, batch):
    """CPU for each item at a batch size between the measured ones, along the logarithm of the size."""
    rows = sorted(rows)
    if batch <= rows[0][0]:
        return rows[0][1]
    for (a, ya, _), (b, yb, _) in zip(rows, rows[1:]):
        if batch <= b:
            return ya + (yb - ya) * math.log(batch / a) / math.log(b / a)
    return rows[-1][1]


def medians(runs):
    return {k: statistics.median(r[k] for r in runs) for k in runs[0]}


def table(points):
    head = ("point", "system", "req/s", "p50 us", "p99 us", "batch", "CPU us", "overhead us", "other")
    rows = [(f"{p['model']} {p['protocol']} {p['concurrency']} {p['driver']}", p["system"], f"{p['per_second']:.0f}",
             f"{p['p50_us']:.0f}", f"{p['p99_us']:.0f}", f"{p['batch']:.1f}", f"{p['cpu_us']:.0f}", f"{p['overhead_us']:.0f}",
             f"{p['other']:.2f}") for p in points]
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = []
    for i, r in enumerate([head, *rows]):
        lines.append("  ".join(c.ljust(w) if j < 2 else c.rjust(w) for j, (c, w) in enumerate(zip(r, widths))))
        if i == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="one round of 1 s, loadgen alone")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--only", default="")
    p.add_argument("--systems", default="sluice,original")
    p.add_argument("--drivers", default="loadgen,perf")
    args = p.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.drivers = 1, 1, "loadgen"
    return args


def take(servers, args):
    """All runs: point -> [figures of each round]; and ONNX Runtime alone, measured at the begin of each round."""
    wanted = [(m, proto, c, d) for m in MODELS if m != "echo" for proto in ("http", "grpc") for c in (1, 8, 32) for d in args.drivers.split(",")]
    wanted += [(m, proto, c, "loadgen") for m, proto in SHARED for c in (1, 8) if "loadgen" in args.drivers]
    words = [w for w in args.only.split(",") if w]
    wanted = [w for w in wanted if not words or any(x in " ".join(map(str, w)) for x in words)]
    runs, bare = {}, []
    total, done, begin = len(wanted) * args.rounds * len(servers), 0, time.monotonic()
    for _ in range(args.rounds):
        bare.append(bare_runs(0.5 if args.quick else 1))
        for model, protocol, concurrency, driver in wanted:
            for system, server in servers.items():
                if model == "echo" and system != "sluice":
                    continue
                done += 1
                print(f"\r{done}/{total}  {time.monotonic() - begin:4.0f} s  {model} {protocol} {concurrency} {driver} {system}".ljust(78),
                      end="", file=sys.stderr, flush=True)
                key = (model, protocol, concurrency, driver, system)
                try:
                    runs.setdefault(key, []).append(measure(server, driver, model, protocol, concurrency, args.seconds))
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
                    print(f"\n{' '.join(map(str, key))}: {e}", file=sys.stderr)
    print(file=sys.stderr)
    return {k: v for k, v in runs.items() if v}, middle(bare)


def main():
    args = arguments()
    servers = {}
    own = tempfile.TemporaryDirectory()
    (pathlib.Path(own.name) / "echo" / "1").mkdir(parents=True)
    (pathlib.Path(own.name) / "echo" / "config.pbtxt").write_text(ECHO)
    try:
        if "sluice" in args.systems:
            servers["sluice"] = harness.Server(repositories=[REPOSITORIES / "sluice", own.name], flags=[CACHE])
        if "original" in args.systems:
            servers["original"] = Original()
        runs, rows = take(servers, args)
    finally:
        for s in servers.values():
            s.stop()
    points = []
    for (model, protocol, concurrency, driver, system), taken in runs.items():
        p = {"model": model, "protocol": protocol, "concurrency": concurrency, "driver": driver, "system": system, **medians(taken)}
        p["overhead_us"] = p["cpu_us"] - (interpolate(rows[model], p["batch"]) if model in rows else 0)
        points.append({**p, "rounds": taken})
    print("ONNX Runtime alone, CPU us per item:  " + "; ".join(
        f"{m}: " + ", ".join(f"batch {b} {cpu:.0f}" for b, cpu, _ in r) for m, r in rows.items()))
    print(table(points))
    out = ROOT / "bench" / "out"
    out.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    (out / f"{stamp}.json").write_text(json.dumps({"cores": os.cpu_count(), "bare": rows, "points": points}, indent=1) + "\n")
    for driver in sorted({p["driver"] for p in points}):
        svg = picture.draw([p for p in points if p["driver"] == driver and p["model"] in rows], lambda m, b: interpolate(rows[m], b), driver)
        (out / f"{stamp}-{driver}.svg").write_text(svg)
    print(f"bench/out/{stamp}.json and .svg; load average at the end {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
