"""Every call of platform_cases.py gets the original's answer, kept in platforms.json, or ours where that is better (OURS)."""
import json
import os
import pathlib
import re

import pytest

import harness
import platform_cases
import platforms

GOLDEN = json.loads(pathlib.Path(__file__).with_name("platforms.json").read_text())
ENVIRONMENT = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": platform_cases.DEFAULT, "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}


@pytest.fixture(scope="module", params=["sluice", "library"])
def servers(request, built, tmp_path_factory):
    """Both front ends of one server, over either transport."""
    folder = tmp_path_factory.mktemp("platforms")
    root, base = folder / "opt", folder / "base"
    platforms.lay(harness.TEST_MODELS, root)
    base.mkdir()
    for name in (platform_cases.DEFAULT, "plain"):
        (base / name).symlink_to(harness.TEST_MODELS / name)
    os.environ.update(ENVIRONMENT)
    try:
        server = harness.Server([base], [
            "--model-control-mode=explicit", f"--load-model={platform_cases.DEFAULT}", f"--http-transport={request.param}",
            "--model-namespacing=true", "--allow-sagemaker=true", "--sagemaker-address=127.0.0.1", "--sagemaker-port=0",
            f"--sagemaker-model-directory={root}", "--allow-vertex-ai=true", "--vertex-ai-address=127.0.0.1", "--vertex-ai-port=0"])
    finally:
        for name in ENVIRONMENT:
            del os.environ[name]
    yield server, str(root)
    assert server.stop() == 0, "exit status after SIGTERM\n" + server.log()[-3000:]


def plain(answer):
    """The answer without what must differ, and the content type where the original has one that fits."""
    answer = json.loads(json.dumps(answer))
    if answer["status"] != 200 or not answer["body"] or answer["type"] == "text/plain":
        answer.pop("type")
    body = answer["body"]
    if isinstance(body, dict):
        for part in ("platform", "version", "extensions", "parameters"):
            body.pop(part, None)
        if "models" in body:  # the original's are in the order of its hashes, with {} for what it takes for not ready
            body["models"] = sorted((m for m in body["models"] if m), key=lambda m: m["modelName"])
    return answer


def differs(kind, name, got):
    if name in platform_cases.OURS[kind]:
        status, pattern, _ = platform_cases.OURS[kind][name]
        body = got["body"]
        text = body.get("error", json.dumps(body)) if isinstance(body, dict) else body
        return None if got["status"] == status and re.search(pattern, text) else platform_cases.OURS[kind][name]
    want = plain(GOLDEN[kind][name])
    got = plain(got)
    if "models" in got["body"] and name == "list of three":  # bb, which the original lists as {}
        want["body"]["models"].insert(1, {"modelName": "bb", "modelUrl": "{root}/bb/model"})
    got.pop("type", None) if "type" not in want else None
    return None if got == want else want


@pytest.mark.parametrize("kind", ["sagemaker", "vertex"])
def test_platform(servers, kind):
    server, root = servers
    address = f"127.0.0.1:{server.ports[{'sagemaker': 'sagemaker', 'vertex': 'vertex_ai'}[kind]]}"
    cases = {"sagemaker": platform_cases.SAGEMAKER, "vertex": platform_cases.VERTEX}[kind]
    wrong = []
    for name, case in cases.items():
        got = platforms.exchange(address, case, root)
        if want := differs(kind, name, got):
            wrong.append(f"{name}: {got}\n    want {want}")
    assert not wrong, "\n".join(wrong)
