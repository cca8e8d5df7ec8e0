"""The scenarios of make chaos, a round of each."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import chaos  # noqa: E402
import run  # noqa: E402


@pytest.fixture(scope="module")
def worlds():
    if reason := chaos.missing():
        pytest.skip(reason)
    w = chaos.Worlds()
    yield w
    w.close()


@pytest.mark.parametrize("name", [s.name for s in chaos.SCENARIOS.values() if s.short])
def test_scenario(worlds, name, record_property):
    """Every answer is right, and what fails was in flight when something was killed, or belongs to a sequence that is begun again."""
    row = worlds.run(chaos.SCENARIOS[name], 0)
    text = run.shown(row)
    record_property("figures", text)
    print("\n" + text)
    assert row["right"], text
    assert row["calls"] >= 300, text
