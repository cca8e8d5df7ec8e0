import pytest

import faults


@pytest.fixture
def redis(built, tmp_path):
    """A real redis-server (faults.Redis)."""
    r = faults.Redis(tmp_path)
    yield r
    r.kill()
