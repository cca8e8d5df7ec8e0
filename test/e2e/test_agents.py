"""Repository agents: checksums of files, executables that change what is loaded, and how their failures are told."""
import hashlib
import json
import os
import zipfile

import harness

EXAMPLES = harness.ROOT / "examples" / "agents"
ONE = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [7]}]}).encode()
CONFIG = """backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


def model(folder, name, agent, **parameters):
    """An identity model that names an agent."""
    (folder / name / "1").mkdir(parents=True)
    given = "".join(f'parameters {{ key: "{k}" value: "{v}" }} ' for k, v in parameters.items())
    (folder / name / "config.pbtxt").write_text(CONFIG + f'model_repository_agents {{ agents [ {{ name: "{agent}" {given}}} ] }}\n')
    return folder / name


def reasons(server):
    status, _, body = server.ask("/v2/repository/index", b"")
    assert status == 200
    return {m["name"]: (m.get("state"), m.get("reason", "").removeprefix("Invalid argument: ")) for m in json.loads(body)}


def test_checksum(start, tmp_path):
    """Right sums load, wrong ones fail with the original's words."""
    data = b"the table"
    md5, sha = hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest()
    for name, key, value in (("right", "MD5:1/table", md5), ("sha", "SHA256:1/table", sha), ("wrong", "MD5:1/table", "0" * 32),
                             ("missing", "MD5:none", md5), ("outside", "MD5:../right/1/table", md5)):
        (model(tmp_path, name, "checksum", **{key: value}) / "1" / "table").write_bytes(data)
    s = start(repositories=[tmp_path], flags=["--exit-on-error=false", "--strict-readiness=false"])
    assert [s.ask(f"/v2/models/{m}/infer", ONE)[0] for m in ("right", "sha")] == [200, 200]
    got = reasons(s)
    assert got["wrong"] == ("UNAVAILABLE", f"Mismatched MD5 hash for file 1/table, expect: {'0' * 32}, got: {md5}")
    assert got["missing"] == ("UNAVAILABLE", "failed to open text file for read none: No such file or directory")
    assert got["outside"] == ("UNAVAILABLE", "file path '../right/1/table' is outside model directory")


def test_executable(start, tmp_path):
    """The example agent unpacks models; its folders are gone after the server; what is wrong is told."""
    models, scratch = tmp_path / "models", tmp_path / "scratch"
    scratch.mkdir()
    good = model(models, "good", "unzip", archive="all.zip")
    with zipfile.ZipFile(good / "all.zip", "w") as z:
        z.writestr("config.pbtxt", CONFIG.replace("max_batch_size: 4", "max_batch_size: 9"))
        z.writestr("3/", "")
    evil = model(models, "evil", "unzip")
    with zipfile.ZipFile(evil / "model.zip", "w") as z:
        z.writestr("../../escaped", "x")
    model(models, "torn", "unzip")
    model(models, "lost", "nobody")
    os.environ["TMPDIR"] = str(scratch)
    try:
        s = start(repositories=[models], flags=["--exit-on-error=false", "--strict-readiness=false", f"--repoagent-directory={EXAMPLES}"])
    finally:
        del os.environ["TMPDIR"]
    config = s.get("/v2/models/good/config")
    assert config["max_batch_size"] == 9 and s.get("/v2/models/good")["versions"] == ["3"]
    assert s.ask("/v2/models/good/infer", ONE)[0] == 200
    got = reasons(s)
    assert got["evil"] == ("UNAVAILABLE", "repo agent 'unzip': '../../escaped' is outside the model's folder")
    assert "model.zip" in got["torn"][1] and got["torn"][1].startswith("repo agent 'unzip': ")
    assert got["lost"] == ("UNAVAILABLE", f"unable to find 'agent' for repo agent 'nobody', searched: {EXAMPLES}")
    assert len(list(scratch.glob("sluice-*/gateway-*/model-*"))) == 1, "only the folder of the model that serves is there"
    assert s.stop() == 0
    assert not list(scratch.glob("sluice-*/gateway-*/model-*")) and not (tmp_path / "escaped").exists()


def test_events(start, tmp_path):
    """An agent hears of load and unload in order; its variables come from the server's, without the others."""
    agent = tmp_path / "agents" / "note"
    agent.mkdir(parents=True)
    (agent / "agent").write_text('#!/bin/sh\n{ cat; echo; } >>"$SLUICE_AGENT_NOTES"; env >>"$SLUICE_AGENT_NOTES.env"\n')
    (agent / "agent").chmod(0o755)
    model(tmp_path / "models", "m", "note", key="value")
    notes = tmp_path / "notes"
    os.environ.update(SLUICE_AGENT_NOTES=str(notes), PRIVATE_TOKEN="secret")
    try:
        s = start(repositories=[tmp_path / "models"], flags=[f"--repoagent-directory={tmp_path / 'agents'}", "--model-control-mode=explicit"])
    finally:
        del os.environ["SLUICE_AGENT_NOTES"], os.environ["PRIVATE_TOKEN"]
    told = lambda: [json.loads(line) for line in notes.read_text().splitlines()]
    assert s.ask("/v2/repository/models/m/load", b"")[0] == 200
    harness.wait_for(lambda: len(told()) == 2, 5, "LOAD and LOAD_COMPLETE")
    assert s.ask("/v2/repository/models/m/unload", b"")[0] == 200
    harness.wait_for(lambda: len(told()) == 4, 5, "UNLOAD and UNLOAD_COMPLETE")
    assert [q["event"] for q in told()] == ["LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]
    assert {(q["model"], q["location"], q["parameters"]["key"]) for q in told()} == {("m", str(tmp_path / "models" / "m"), "value")}
    assert "PRIVATE_TOKEN" not in (tmp_path / "notes.env").read_text()
