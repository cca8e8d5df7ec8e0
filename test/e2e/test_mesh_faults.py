"""What breaks behind and around Envoy while load runs through it, and what callers see of it (docs/0017-deploy.md has the figures)."""
import os
import signal
import time

import pytest

import faults
import harness
from mesh import mesh  # noqa: F401  (a fixture)

# Calls in flight at one time through faults.Load, of each protocol.
IN_FLIGHT = 4


@pytest.fixture
def load():
    """Starts load; what a test leaves running is ended."""
    made = []

    def begin(address, **options):
        made.append(faults.Load(address, concurrency=IN_FLIGHT, **options))
        return made[-1]

    yield begin
    for l in made:
        l.kill()


@pytest.fixture
def report(record_property):
    """Keeps the figures of a test: they are printed with -s and written down in docs/0017-deploy.md."""
    def tell(what, results):
        text = f"{what}: {faults.summary(results)}"
        record_property("figures", text)
        print("\n" + text)
    return tell


def answered(m):
    """Calls through Envoy that a gateway has answered with success so far."""
    return sum(m.stat(f"cluster.{c}/default.upstream_rq_{k}") for c in ("http", "grpc") for k in ("2xx",))


def more(m, n, seconds=30):
    """Waits for n further calls to be answered."""
    before = answered(m)
    harness.wait_for(lambda: answered(m) >= before + n, seconds, f"{n} more calls answered")


def none_failed(results, least):
    for p, r in results.items():
        assert not r["errors"], f"{p}: {r['errors']} failed, {r['failures']}"
    assert sum(r["requests"] for r in results.values()) >= least, results


def test_rolling_restart(mesh, load, report, tmp_path):
    """Three gateways are stopped and started one after the other: none of 20,000 calls fails."""
    m = mesh(gateways=3, repositories=[faults.repository(tmp_path / "models")])
    running = load(m.http)
    more(m, 500)
    for i, old in enumerate(m.gateways):
        assert old.stop() == 0, old.log()[-2000:]
        m.gateways[i] = harness.Server(repositories=m.repositories, flags=m.flags, place=old)
        m.gateways[i].name = old.name
        m.settled("http/default", 3)
        m.settled("grpc/default", 3)
    harness.wait_for(lambda: answered(m) >= 20_500, 60, "20,000 calls")
    results = running.end()
    report("rolling restart of three gateways", results)
    none_failed(results, 20_000)
