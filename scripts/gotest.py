#!/usr/bin/env python3
"""Reads `go test -json` and prints what a person wants of it: a line for each package while it goes on, then the slowest
tests, the reasons of what was skipped, what each failed test said, and a sum. Exits 1 when anything failed."""
import collections
import json
import sys

LINES = 120  # of one failure, its beginning and its end: a data race stands at the beginning, a panic's cause too
ALL = 1500  # of all failures together


def shortened(text, most):
    lines = text.splitlines()
    if len(lines) <= most:
        return lines
    head = most * 2 // 3
    return [*lines[:head], f"    ... {len(lines) - most} lines left out ...", *lines[head - most:]]


def tells(text):
    """Whether a failure says more than that it is one: a test with failed subtests, or their package, says no more."""
    return any(not x.lstrip().startswith(("=== ", "--- ", "FAIL", "PASS", "exit status")) for x in text.splitlines() if x.strip())


class Report:
    def __init__(self):
        self.output = collections.defaultdict(list)
        self.counts = collections.Counter()
        self.failed, self.skipped, self.packages, self.took = [], [], set(), []

    def read(self, event):
        package = event.get("Package") or event.get("ImportPath", "")
        test, action = event.get("Test", ""), event["Action"]
        if action in ("output", "build-output"):
            self.output[package, test].append(event["Output"])
        elif test and action in ("pass", "fail", "skip"):
            self.test(package, test, action, event.get("Elapsed", 0))
        elif action in ("pass", "fail", "skip", "build-fail"):
            self.package(package, action, event)

    def test(self, package, test, action, took):
        text = "".join(self.output.pop((package, test), []))
        if "/" not in test:
            self.counts[action] += 1
            self.took.append((took, f"{short(package)} {test}"))
        if action == "fail":
            self.fail(package, test, text)
        elif action == "skip":
            said = [x.strip() for x in text.splitlines() if not x.lstrip().startswith(("===", "---"))]
            self.skipped.append(f"{short(package)} {test}: {' '.join(said)}")

    def package(self, package, action, event):
        # A package that did not end by itself leaves tests that neither passed nor failed: what they said is told too.
        text = "".join(self.output.pop((package, ""), []))
        for key in [k for k in self.output if k[0] == package]:
            text = "".join(self.output.pop(key)) + text if action in ("fail", "build-fail") else text
        if action in ("fail", "build-fail"):
            self.fail(package, "", text)
        if action != "build-fail":
            self.packages.add(package)
            print(f"{'FAIL' if action == 'fail' else 'ok  '} {short(package)}  {event.get('Elapsed', 0):.1f}s", flush=True)

    def fail(self, package, test, text):
        self.failed.append((f"{short(package)} {test}".strip(), text))
        if test:
            print(f"     {short(package)} {test} failed, see below", flush=True)

    def end(self):
        for took, name in sorted(self.took, reverse=True)[:10]:
            print(f"slow: {took:.1f}s {name}")
        for s in self.skipped:
            print("skipped:", s)
        room = ALL
        for name, text in self.failed:
            if not tells(text):
                continue
            print(f"\n-- {name}")
            lines = shortened(text, max(10, min(LINES, room)))
            room -= len(lines)
            print("\n".join(lines))
        if self.failed:
            print()
        for name, _ in self.failed:
            print("failed:", name)
        print(f"go: {self.counts['pass']} tests passed, {self.counts['fail']} failed, {self.counts['skip']} skipped in {len(self.packages)} packages")


def short(package):
    return package.split("/", 3)[-1]


def main():
    report = Report()
    for line in sys.stdin:
        try:
            event = json.loads(line)
        except ValueError:
            print(line, end="", flush=True)
            continue
        report.read(event)
    report.end()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
