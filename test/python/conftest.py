import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import peer  # noqa: E402


@pytest.fixture
def start(tmp_path):
    """Starts runners of the test's own, initialized ones unless raw; they are killed after it."""
    peers = []

    def begin(model, config=None, raw=False, **kwargs):
        p = peer.Peer(tmp_path / str(len(peers)), model, **kwargs)
        peers.append(p)
        if not raw:
            for c in range(len(p.channels)):
                p.hooks = p.start(config, channel=c)
        return p

    yield begin
    for p in peers:
        p.close()
