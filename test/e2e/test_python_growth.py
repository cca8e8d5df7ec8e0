"""A server with Python models does not grow by what passes through it: a thousand open requests, streamed answers, reloads."""
import http.client

import pytest

import growth
import harness

OPEN, ANSWERS, RELOADS = 1000, 100_000, 20
ONE_MORE = 150   # requests beyond the 1024 that an instance may have open
MOST = {"gateway": 256e6, "worker": 64e6, "model": 128e6}  # bytes
SPARE = {"gateway": 96e6, "worker": 16e6, "model": 8e6}    # bytes that the second of two equal rounds may add


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return growth.lay(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(built, root):
    s = harness.Server([root], [growth.PYTHON, "--model-control-mode=explicit", "--load-model=*"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


def settled(server, before=None):
    """What the server holds, once it has no more than before besides its memory: connections are closed in the background."""
    def smaller():
        now = growth.held(server)
        return set(now) == {"gateway", "worker", "model"} and (before is None or all(
            now[k].descriptors <= before[k].descriptors + 2 and now[k].processes <= before[k].processes for k in now)) and now
    return harness.wait_for(smaller, 60, f"no more descriptors and processes than before: {before}")


def check(before, after):
    for name, most in MOST.items():
        assert after[name].memory < most, f"{name}: {after[name]}"
        assert after[name].memory < before[name].memory + SPARE[name], f"{name}: {after[name]}, before {before[name]}"
        assert after[name].threads <= before[name].threads + 16, f"{name}: {after[name]}, before {before[name]}"


def open_requests(server, root, number):
    """Opens so many requests, then lets them go; an instance takes 1024 of them at a time."""
    streams = [growth.begin(server, -3) for _ in range(min(number, OPEN))]  # with their status, so they are open
    more = [http.client.HTTPConnection(server.http, timeout=60) for _ in range(number - len(streams))]
    for c in more:
        c.request("POST", "/v2/models/count/generate_stream", '{"N": -3}')
    go = root / "count" / "go"
    go.touch()
    try:
        got = [growth.read(*s) for s in streams] + [growth.read(c, c.getresponse()) for c in more]
    finally:
        go.unlink()
    assert got == [3] * number, [g for g in got if g != 3][:5]


def test_open_requests(server, root):
    """A thousand open requests of one instance; then more than it may have open."""
    open_requests(server, root, OPEN)
    before = settled(server)
    open_requests(server, root, OPEN)
    open_requests(server, root, OPEN + ONE_MORE)
    check(before, settled(server, before))


def test_streamed_answers(server):
    growth.streamed(server, ANSWERS)
    before = settled(server)
    growth.streamed(server, ANSWERS)
    check(before, settled(server, before))


def test_reloads(server, root):
    model = root / "constant" / "1" / "model.py"
    for i in range(3):
        growth.reload(server, model, i + 1)
    before = settled(server)
    for i in range(RELOADS - 3):
        growth.reload(server, model, i + 10)
    check(before, settled(server, before))
