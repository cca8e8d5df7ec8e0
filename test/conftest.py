import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import harness  # noqa: E402
from lots import pytest_runtestloop  # noqa: E402,F401  a hook of pytest


@pytest.fixture(scope="session")
def built():
    """Skips, with the reason, where the binaries or the models are missing."""
    if reason := harness.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["sluice", "library"])
def transport(request):
    """What carries both protocols."""
    return request.param


@pytest.fixture(scope="session")
def server(built, transport):
    """One server on each transport for all tests that leave it as it was: demo models and test models."""
    s = harness.Server(flags=["--http-header-forward-pattern=^fail$", "--grpc-header-forward-pattern=^fail$", f"--http-transport={transport}",
                              f"--grpc-transport={transport}"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.fixture
def start(built):
    """Starts servers of the test's own; they are killed after it."""
    servers = []

    def begin(*args, **kwargs):
        servers.append(harness.Server(*args, **kwargs))
        return servers[-1]

    yield begin
    for s in servers:
        s.kill()
