#!/usr/bin/env python3
"""Runs the fault trials: calls through Envoy and two gateways, every answer checked, while things are killed, frozen, changed and
filled. Prints a line for each scenario; exits with 1 when an answer was wrong, or a call failed that need not.

    run.py [--seconds S] [--only WORD[,WORD...]] [--json FILE] [--list]

Failed are calls without an answer; of those may be some in flight at a kill -9, one of each caller, and some of sequences that
were refused, so that they begin again. make chaos SECONDS= builds what this needs.
"""
import argparse
import signal
import sys

import pytest

import chaos
import scenarios  # noqa: F401
import scenarios_files  # noqa: F401
import scenarios_sequences  # noqa: F401

WIDTHS = (31, 36, 9, 7, 9, 7, 5, 9)
HEAD = ("scenario", "faults", "calls", "failed", "in flight", "refused", "wrong", "longest")


def line(cells):
    """Texts to the left, numbers to the right."""
    return "  ".join(f"{c:<{w}}" if i < 2 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, WIDTHS)))


def shown(row):
    what = ", ".join(f"{n} {k}" for k, n in row["faults"].items())
    cells = [row["scenario"], what, *(f"{row[k]:,}" for k in ("calls", "failed", "in_flight", "refused", "wrong")), f"{row['longest_ms']:,} ms"]
    out = line(cells)
    if not row["right"]:
        for kind in ("failures", "wrongs"):
            most = sorted(row[kind].items(), key=lambda f: -f[1])[:8]
            out += "".join(f"\n    {kind[:-1]:<8} {n:>7,} × {text}" for text, n in most)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=300, help="of all scenarios together")
    p.add_argument("--only", default="", help="words of scenarios' names, by commas")
    p.add_argument("--json", help="write the figures to this file too")
    p.add_argument("--list", action="store_true", help="say which scenarios there are")
    o = p.parse_args()
    words = o.only.split(",") if o.only else []
    chosen = [s for s in chaos.SCENARIOS.values() if not words or any(w in s.name for w in words)]
    if o.list or not chosen:
        print("\n".join(chaos.SCENARIOS))
        return 0 if o.list else 2
    if reason := chaos.missing():
        sys.exit(reason)
    rows = run(chosen, o.seconds)
    if o.json:
        chaos.save(rows, o.json)
    total = {k: sum(r[k] for r in rows) for k in ("calls", "failed", "in_flight", "refused", "wrong")}
    print(line(["-" * w for w in WIDTHS]))
    print(shown({**total, "scenario": f"{len(rows)} scenarios", "faults": {}, "longest_ms": max((r["longest_ms"] for r in rows), default=0),
                 "right": True}))
    bad = [s.name for s in chosen if not any(r["scenario"] == s.name and r["right"] for r in rows)]
    if bad:
        print(f"not as it should be: {', '.join(bad)}")
    return 1 if bad else 0


def run(chosen, seconds):
    """The figures of the scenarios, printed as they come; of one that could not be run its fault is printed."""
    worlds, rows, shares = chaos.Worlds(), [], chaos.shares(chosen, seconds)
    print(line(HEAD))
    print(line(["-" * w for w in WIDTHS]))
    try:
        for s in chosen:
            try:
                rows.append(worlds.run(s, shares[s.name]))
            except (AssertionError, OSError, pytest.skip.Exception) as e:
                print(f"{s.name:<{WIDTHS[0]}}  could not go on: {e}", flush=True)
                continue
            print(shown(rows[-1]), flush=True)
    finally:
        worlds.close()
        if worlds.kept:
            print(f"logs: {worlds.kept}", file=sys.stderr)
    return rows


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended first
    sys.exit(main())
