"""Shares the test files out between pytest runs side by side, which scripts/pytest.sh starts with the same files in the same order:
one takes them from the beginning, one from the end, until they meet, so both end about the same time however long each file takes.

    SLUICE_TEST_LOT=first|last   from where this run takes files; without it a run has all of them
    SLUICE_TEST_TAKEN=FOLDER     empty at first; a file in it says that a test file is taken
"""
import itertools
import os
import pathlib


def unit(item):
    """What is taken at once: a file, but those of test/conformance together, which share servers."""
    folder = item.path.parent.name
    return folder if folder == "conformance" else f"{folder}-{item.path.name}"


def units(items, lot):
    """The tests by their units, in this run's order."""
    grouped = {}
    for item in items:
        grouped.setdefault(unit(item), []).append(item)
    return reversed(grouped.items()) if lot == "last" else grouped.items()


def taken(items, lot, folder):
    """The tests of the units that no other run has taken. The next unit is taken when a test is asked for that begins it."""
    for name, tests in units(items, lot):
        try:
            os.close(os.open(pathlib.Path(folder) / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield from tests


def pytest_runtestloop(session):
    """pytest's own loop, over what this run takes."""
    lot = os.environ.get("SLUICE_TEST_LOT")
    if not lot or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own
    mine = taken(session.items, lot, os.environ["SLUICE_TEST_TAKEN"])
    for item, after in itertools.pairwise(itertools.chain(mine, [None])):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True
