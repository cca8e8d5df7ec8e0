"""Python models answer as in the real server, whose answers python.json keeps, or as OURS says where those are at fault."""
import json
import pathlib
import re
import subprocess
import sys

import pytest

import harness
import python_cases
import python_exchange

GOLDEN = json.loads(pathlib.Path(__file__).with_name("python.json").read_text())
PYTHON = f"--backend-config=python,python={sys.executable}"


def shown(answer):
    """An answer with files as ours names them, relative to their models."""
    return json.loads(re.sub(r"{repository}/(good|bad)/\w+/", "", json.dumps(answer)))


def wrong(kind, got):
    """What differs, as lines."""
    lines = []
    for name, answer in got.items():
        want = shown(GOLDEN[kind][name])
        text = json.dumps(answer, ensure_ascii=False, sort_keys=True)
        ours = python_cases.OURS.get(f"{kind}: {name}")
        if not ours and isinstance(want, dict) and set(want) & {"server ended", "process ended", "hang"}:
            ours = '"status": 200', "there is nothing to compare with"
        if ours:
            if not re.search(ours[0], text):
                lines.append(f"{kind}: {name}: {text}\n    want /{ours[0]}/: {ours[1]}")
        elif answer != want:
            lines.append(f"{kind}: {name}: {text}\n    want {json.dumps(want, ensure_ascii=False, sort_keys=True)}")
    return lines


@pytest.fixture(scope="module")
def asked(built, tmp_path_factory):
    folder = python_exchange.lay(tmp_path_factory.mktemp("python") / "good", False)
    server = harness.Server([folder], [PYTHON])
    try:
        yield python_exchange.ask((f"127.0.0.1:{server.ports['http']}", f"127.0.0.1:{server.ports['grpc']}"))
    finally:
        assert server.stop() == 0, "exit status after SIGTERM\n" + server.log()[-3000:]


@pytest.mark.parametrize("kind", ["http", "code", "sender", "stream"])
def test_answers(asked, kind):
    lines = wrong(kind, asked[kind])
    assert not lines, "\n".join(lines)


def test_loads(built, tmp_path):
    folder = python_exchange.lay(tmp_path / "bad", True)
    server = harness.Server([folder], [PYTHON, "--model-control-mode=explicit"])
    try:
        addresses = (f"127.0.0.1:{server.ports['http']}", f"127.0.0.1:{server.ports['grpc']}")
        got = {n: python_exchange.load(addresses, n) for n in python_cases.LOAD}
    finally:
        assert server.stop() == 0, "exit status after SIGTERM\n" + server.log()[-3000:]
    got = json.loads(json.dumps(got).replace(str(folder.parent), "{repository}"))
    lines = wrong("load", got)
    assert not lines, "\n".join(lines)


def test_check(built, tmp_path):
    """check finds what can be found without running a model."""
    folder = python_exchange.lay(tmp_path / "bad", True)
    run = subprocess.run([harness.BINARY, "check", folder, PYTHON], capture_output=True, text=True, timeout=120)
    models = {block.split()[1]: block for block in run.stdout.split("\n\n") if block.strip() and block.split()[0] in ("ok", "WRONG")}
    wrong = {name: block for name, block in models.items() if block.startswith("WRONG")}
    assert run.returncode == 1 and sorted(wrong) == ["bad_class", "bad_execute", "bad_file", "bad_import", "bad_syntax"], run.stdout
    for name, text in {"bad_class": "1/model.py has no class TritonPythonModel", "bad_execute": "has no function execute",
                       "bad_file": "unable to find '1/model.py'", "bad_import": "line 1: there is no package 'nothing_of_this_name'",
                       "bad_syntax": "1/model.py, line 1: expected ':'"}.items():
        assert text in wrong[name], wrong[name]
    assert f"Python {sys.version.split()[0]}, " in models["types"] and "1/model.py has execute" in models["types"], models["types"]
    assert "auto_complete_config for what the config leaves out" in models["bad_batch"]
