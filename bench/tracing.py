#!/usr/bin/env python3
"""What spans cost: CPU of gateway and worker for each request at sampling rates of 0, 1 % and 100 %, and with tracing off.

    tracing.py [--rounds N] [--seconds S] [--concurrency C] [--protocols http,grpc] [--perf]

One server for each row, whose rate is changed while it runs; `off` is a second one, without OpenTelemetry. The slices are
interleaved, each round in another order; the table has medians, and of the shares the median over the rounds with the
middle half of them. Spans go to a receiver in this process, which reads and drops them. `lost` are sampled requests that
were not exported. With --perf it is `perf record` instead: the share of the samples of gateway and worker whose stack is in
tracing or in its exporter, which a busy machine does not blur. `make bench-tracing` builds what this needs.
"""
import argparse
import http.server
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run  # noqa: E402

harness = run.harness
RATES = {"0 %": "0", "1 %": "100", "100 %": "1"}


class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def lost(server):
    line = [v for v in server.metrics_text().splitlines() if v.startswith("sluice_traces_dropped_total")]
    return float(line[0].split()[1]) if line else 0


def slice_of(server, rate, protocol, concurrency, seconds):
    if rate is not None:
        status, _, answer = server.ask("/v2/trace/setting", f'{{"trace_rate": "{rate}"}}'.encode())
        assert status == 200, answer
    before, cpu, gone = run.counted(server, "mlp")[0], run.cpu_of(server.pid), lost(server)
    r = run.loadgen(getattr(server, protocol), "mlp", protocol, concurrency, seconds)
    requests = run.counted(server, "mlp")[0] - before
    return (run.cpu_of(server.pid) - cpu) / requests * 1e6, r["per_second"], (lost(server) - gone) / requests


# Functions of tracing on the path of a request, and those of the exporter with all that it calls.
OURS = re.compile(r"sluice/tracing|otlptrace|net/http\.|infer\.\(\*Trace|infer\.New(Span|Trace)ID|pipeline\.(\(\*Pipeline\)\.traced|untraced|responded)"
                  r"|\.trace(Sent|Received|Sending)")


def sampled_share(server, rate, protocol, concurrency, seconds):
    """The part of all samples that is tracing's, and how many there were."""
    pids = ",".join(str(p) for p in [server.pid, *harness.descendants(server.pid)])
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "perf.data")
        record = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-g", "-o", file, "-p", pids],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        slice_of(server, rate, protocol, concurrency, seconds)
        record.send_signal(signal.SIGINT)
        record.wait()
        text = subprocess.run(["perf", "script", "-i", file, "-F", "comm,ip,sym"], capture_output=True, text=True, check=True).stdout
    stacks = [s for s in text.split("\n\n") if s.strip()]
    return sum(bool(OURS.search(s)) for s in stacks) / len(stacks), len(stacks)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--concurrency", type=int, default=8)
    p.add_argument("--protocols", default="http,grpc")
    p.add_argument("--perf", action="store_true")
    args = p.parse_args()
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    repositories = (run.REPOSITORIES / "sluice",)
    traced = harness.Server(repositories=repositories, flags=["--trace-config=mode=opentelemetry", "--trace-config=rate=0",
                            f"--trace-config=opentelemetry,url=http://127.0.0.1:{sink.server_port}/v1/traces"])
    plain = None if args.perf else harness.Server(repositories=repositories)
    try:
        for protocol in args.protocols.split(","):
            if args.perf:
                for name, rate in RATES.items():
                    part, samples = sampled_share(traced, rate, protocol, args.concurrency, max(args.seconds, 5))
                    print(f"{protocol}, {name} sampled: {part:.2%} of {samples} samples", flush=True)
                continue
            rows = {"off": [], **{name: [] for name in RATES}}
            for n in range(args.rounds + 1):
                names = list(rows)
                for name in names[n % len(names):] + names[:n % len(names)]:
                    server, rate = (plain, None) if name == "off" else (traced, RATES[name])
                    got = slice_of(server, rate, protocol, args.concurrency, args.seconds)
                    if n:  # the first round warms up
                        rows[name].append(got)
            print(f"\n{protocol}, concurrency {args.concurrency}, {args.rounds} rounds of {args.seconds} s: "
                  "sampled | CPU us | of off | middle half | of 0 % | middle half | req/s | lost")
            for name, got in rows.items():
                shares = []
                for base in ("off", "0 %"):
                    share = sorted(g[0] / b[0] - 1 for g, b in zip(got, rows[base]))
                    shares += [f"{statistics.median(share):+.1%}", f"{share[len(share) // 4]:+.1%} … {share[-1 - len(share) // 4]:+.1%}"]
                print(" | ".join([name, f"{statistics.median(g[0] for g in got):.1f}", *shares,
                                  f"{statistics.median(g[1] for g in got):.0f}", f"{max(g[2] for g in got):.1%}"]), flush=True)
    finally:
        traced.stop()
        if plain:
            plain.stop()
        sink.shutdown()


if __name__ == "__main__":
    try:
        main()
    except subprocess.TimeoutExpired as e:
        sys.exit(str(e))
