#!/usr/bin/env python3
"""What gateway and worker take at rest, with the demo models loaded: CPU as a share of one core, and wake-ups a second.

    make build && .cache/venv/bin/python bench/rest.py [--seconds 30] [--settle 12] [--most 0.1] [--binary PATH] [-- FLAGS OF sluice serve]

After --settle seconds without a request it reads for each thread what the scheduler says that it ran, and how often it gave up its
core to wait (/proc/PID/task/TID/schedstat and status), and once more after --seconds. Exact as that is, it knows nothing of the
kernel's own work for a wake-up. --most makes it fail above a share, in percent.
"""
import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "test"))
import harness  # noqa: E402


def usage(pid):
    """Nanoseconds on a core and voluntary switches of each thread of a process."""
    threads = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            ran = int((task / "schedstat").read_text().split()[0])
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        threads[task.name] = (ran, int(status["voluntary_ctxt_switches"]))
    return threads


def spent(before, after):
    """What happened in between; threads that have ended are left out."""
    zero = (0, 0)
    return [sum(now[i] - before.get(tid, zero)[i] for tid, now in after.items()) for i in range(2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--settle", type=float, default=12)
    parser.add_argument("--most", type=float, help="percent of a core, of all processes together")
    parser.add_argument("--binary", help="path of sluice, with sluice-worker beside it")
    parser.add_argument("flags", nargs="*")
    a = parser.parse_args()
    server = harness.Server(repositories=[harness.DEMO], flags=a.flags, program=a.binary)
    try:
        time.sleep(a.settle)
        pids = {"gateway": server.pid, **{f"worker {i}": pid for i, pid in enumerate(server.workers())}}
        began, before = time.monotonic(), {name: usage(pid) for name, pid in pids.items()}
        time.sleep(a.seconds)
        seconds, total = time.monotonic() - began, [0.0, 0.0]
        for name, pid in pids.items():
            ran, switches = spent(before[name], usage(pid))
            figures = ran / seconds / 1e7, switches / seconds
            total = [total[i] + figures[i] for i in range(2)]
            print(f"{name:10} {figures[0]:6.3f} % of a core, {figures[1]:5.1f} wake-ups a second")
        print(f"{'together':10} {total[0]:6.3f} % of a core, {total[1]:5.1f} wake-ups a second")
    finally:
        server.kill()
    if a.most is not None and total[0] > a.most:
        sys.exit(f"more than {a.most} %")


if __name__ == "__main__":
    main()
