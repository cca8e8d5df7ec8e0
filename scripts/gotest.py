#!/usr/bin/env python3
"""Reads `go test -json` and prints what a person wants of it: a line for each package while it goes on, the output of
what failed, the reasons of what was skipped, and a sum at the end. Exits 1 when anything failed."""
import collections
import json
import sys


def main():
    output = collections.defaultdict(list)
    counts = collections.Counter()
    failed, skipped, names = [], [], set()
    for line in sys.stdin:
        try:
            e = json.loads(line)
        except ValueError:
            print(line, end="", flush=True)
            continue
        package = e.get("Package") or e.get("ImportPath", "")
        test = e.get("Test", "")
        action = e["Action"]
        if action in ("output", "build-output"):
            output[package, test].append(e["Output"])
        elif test and action in ("pass", "fail", "skip"):
            if "/" not in test:
                counts[action] += 1
            if action == "fail":
                failed.append(f"{package} {test}")
                print("".join(output[package, test]), end="", flush=True)
            elif action == "skip":
                text = [x.strip() for x in output[package, test] if not x.lstrip().startswith(("===", "---"))]
                skipped.append(f"{package.split('/', 3)[-1]} {test}: {' '.join(text)}")
            output.pop((package, test), None)
        elif action in ("pass", "fail"):
            if action == "fail":
                failed.append(package)
                print("".join(output[package, ""]), end="")
            names.add(package)
            print(f"{'ok  ' if action == 'pass' else 'FAIL'} {package.split('/', 3)[-1]}  {e.get('Elapsed', 0):.1f}s", flush=True)
        elif action == "build-fail":
            failed.append(package)
            print("".join(output[package, ""]), end="", flush=True)
    for s in skipped:
        print("skipped:", s)
    for f in failed:
        print("failed:", f)
    print(f"go: {counts['pass']} tests passed, {counts['fail']} failed, {counts['skip']} skipped in {len(names)} packages")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
