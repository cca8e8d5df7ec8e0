"""The scenarios of make chaos, a round of each."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import chaos  # noqa: E402
import run  # noqa: E402


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    if reason := chaos.missing():
        pytest.skip(reason)
    w = chaos.Worlds()
    w.kept = tmp_path_factory.mktemp("logs")
    yield w
    w.close()


def test_wrong_answers_count(worlds):
    """What callers may not see any more is wrong, and a scenario with wrong answers is not right."""
    def forbid(t):
        t.callers.say("forbid echo 0")
        t.more(50)

    forbidden = chaos.Scenario("forbidden", forbid, chaos.World, 1, None, {"models": ["echo"]}, True)
    row = chaos.Trial(forbidden, worlds.world(chaos.World), 0).run()
    assert row["wrong"] >= 50 and not row["right"] and row["failed"] == 0, row
    assert any("version 1 added 0" in text for text in row["wrongs"]), row


@pytest.mark.parametrize("name", [s.name for s in chaos.SCENARIOS.values() if s.short])
def test_scenario(worlds, name, record_property):
    """Every answer is right, and what fails was in flight when something was killed, or belongs to a sequence that is begun again."""
    row = worlds.run(chaos.SCENARIOS[name], 0)
    text = run.shown(row)
    record_property("figures", text)
    print("\n" + text)
    assert row["right"], text
    assert row["calls"] >= 300, text
