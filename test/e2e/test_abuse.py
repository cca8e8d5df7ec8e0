"""Hostile clients on the built server, by test/soak: it stays up, honest clients are served, and nothing is left."""
import os
import re
import subprocess

import pytest

import harness

SOAK = harness.ROOT / "bin" / "soak"


@pytest.fixture(scope="module")
def soak(built):
    if not SOAK.exists():
        subprocess.run(["go", "build", "-o", SOAK, "./test/soak"], cwd=harness.ROOT, check=True, timeout=300)

    def run(*args):
        done = subprocess.run([SOAK, f"-server={harness.BINARY}", *args], capture_output=True, text=True, timeout=300, env=os.environ)
        print(done.stdout)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout
    return run


def test_each_attack(soak):
    """A choice of them one after the other; `bin/soak -each=2s` runs all."""
    chosen = ["h1-slow-body", "h1-never-read", "h2-rapid-reset-grpc", "grpc-huge-announced", "grpc-bomb", "region-shrunk"]
    said = soak("-each=300ms", "-only=" + ",".join(chosen))
    assert sum(said_of(said, name) for name in chosen) == len(chosen), said


def test_tls_handshakes(soak):
    assert said_of(soak("-each=300ms", "-tls", "-only=tls-"), "tls-") == 4


def said_of(said, prefix):
    return len(re.findall(rf"^{prefix}\S* +honest +[1-9]", said, re.M))


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_short_soak(soak, transport):
    """What `make soak` does for ten minutes, for a few seconds: all at random, workers killed in between."""
    said = soak("-seconds=5", f"-http-transport={transport}", f"-grpc-transport={transport}")
    assert "round 2" in said and "workers were killed" in said
