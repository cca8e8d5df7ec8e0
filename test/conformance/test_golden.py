"""Every request of cases.py gets the original's answer, kept in golden.json, or ours where that is better (OURS)."""
import json
import pathlib
import re

import pytest

import cases
import exchange
import harness

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden.json").read_text())


def plain(answer):
    """The answer without what must differ: backend, platform and model file, since ours is not Python."""
    answer = dict(answer)
    for part in ("body", "answer"):
        if isinstance(answer.get(part), dict):
            answer[part] = {k: v for k, v in answer[part].items() if k not in ("platform", "backend", "default_model_filename")}
    return answer


def check(kind, name, got, status, text):
    if name in cases.OURS[kind]:
        reason, right, pattern = cases.OURS[kind][name]
        assert got[status] in right and re.search(pattern, text), f"{got}\nwant one of {right} with /{pattern}/: {reason}"
    else:
        assert plain(got) == plain(GOLDEN[kind][name])


@pytest.mark.parametrize("name", cases.HTTP)
def test_http(server, name):
    got = exchange.http(server.http, *cases.HTTP[name])
    error = got["body"].get("error", "") if isinstance(got["body"], dict) else ""
    check("http", name, got, "status", error)
    assert server.process.poll() is None


@pytest.mark.parametrize("name", cases.GRPC)
def test_grpc(server, name):
    got = exchange.grpc(server.grpc, *cases.GRPC[name])
    check("grpc", name, got, "code", got.get("message", ""))
    assert server.process.poll() is None


def test_control(start, tmp_path):
    """CONTROL, in its order; all differences at once."""
    (tmp_path / "identity_fp32").symlink_to(harness.DEMO / "identity_fp32")
    server = start([harness.TEST_MODELS, tmp_path], ["--model-control-mode=explicit"])
    wrong = []
    for name, case in cases.CONTROL.items():
        got = exchange.either((server.http, server.grpc), *case)
        want = GOLDEN["control"][name]
        if isinstance(got.get("body"), list):  # the index, whose order is the original's hash order
            got["body"], want["body"] = (sorted(a["body"], key=lambda m: m["name"]) for a in (got, want))
        if ours := cases.OURS["control"].get(name):
            text = got["body"].get("error", "") if "body" in got else got.get("message", "")
            if got.get("status", got.get("code")) not in ours[1] or not re.search(ours[2], text):
                wrong.append((name, got, ours))
        elif plain(got) != plain(want):
            wrong.append((name, got, want))
    assert not wrong, "\n".join(f"{n}: {g}\n    want {w}" for n, g, w in wrong)
