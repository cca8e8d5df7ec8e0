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


@pytest.mark.parametrize("args,kinds", [
    (["-seconds=6", "-seed=11"], 10),
    (["-seconds=3", "-seed=12", "-tls", "-only=tls-,h1-slow,h2-rapid,grpc-half"], 3),
    (["-seconds=4", "-seed=13", "-http-transport=library", "-grpc-transport=library", "-memory=1536"], 6),
], ids=["sluice", "tls", "library"])
def test_short_soak(soak, args, kinds, monkeypatch):
    """What `make soak` does for ten minutes, for a few seconds: workers are killed in between, and many attacks have their turn.
    Connections are read by three loops, as on a machine of twelve cores."""
    monkeypatch.setenv("GOMAXPROCS", "12")
    said = soak(*args)
    killed, ran = re.search(r"(\d+) workers were killed, (\d+) of \d+ attacks ran", said).groups()
    assert "round 1" in said and int(killed) > 0 and int(ran) >= kinds, said
