import pytest

import faults


@pytest.fixture(scope="session")
def transport():
    """What `server` runs on here: its tests ask for what models say, and are long; test/conformance asks on both."""
    return "sluice"


@pytest.fixture
def redis(built, tmp_path):
    """A real redis-server (faults.Redis)."""
    r = faults.Redis(tmp_path)
    yield r
    r.kill()
