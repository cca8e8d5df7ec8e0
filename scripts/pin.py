#!/usr/bin/env python3
"""Writes requirements/NAME.txt from requirements/NAME.in: every line with the hashes of its wheels.

    pin.py [NAME...]        all of requirements/*.in when no name is given

Wheels are taken for 64-bit x86 Linux and CPython 3.11, 3.12 and 3.13, through pip's own configuration. A new version is
written into the .in file, then this is run again.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2010_x86_64", "manylinux_2_5_x86_64",
             "manylinux1_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64"]


def wheels(spec, folder):
    """The wheels of one line, one for each Python that has its own."""
    for python in PYTHONS:
        args = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps",
                "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
                "--abi", "cp" + python.replace(".", ""), "--abi", "abi3", "--abi", "none", "-d", folder]
        for p in PLATFORMS:
            args += ["--platform", p]
        done = subprocess.run(args + [spec], capture_output=True, text=True)
        if done.returncode:
            print(f"  no wheel of {spec} for Python {python}", file=sys.stderr)
    return sorted(pathlib.Path(folder).glob("*.whl"))


def pin(name):
    lines = ["# Written by scripts/pin.py; change requirements/%s.in instead." % name]
    for line in (ROOT / f"{name}.in").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = wheels(line, folder)
            if not found:
                sys.exit(f"{line}: no wheel at all")
            hashes = sorted({hashlib.sha256(w.read_bytes()).hexdigest() for w in found})
        print(f"{name}: {line}, {len(hashes)} wheels", flush=True)
        lines.append(line + "".join(f" \\\n    --hash=sha256:{h}" for h in hashes))
    (ROOT / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for n in sys.argv[1:] or sorted(p.stem for p in ROOT.glob("*.in")):
        pin(n)
