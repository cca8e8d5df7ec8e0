"""Every call of memory_cases.py gets the original's answer, kept in golden_memory.json, or ours where that is better (OURS)."""
import json
import pathlib
import re

import exchange
import memory_cases as cases

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden_memory.json").read_text())


def test_memory(start):
    """In their order, on a server of its own; all differences at once."""
    server, region, wrong = start(), cases.Region(), []
    try:
        for name, case in cases.CASES.items():
            got = region.read(*case[0][1:]) if len(case) == 1 else exchange.either((server.http, server.grpc), *case)
            if ours := cases.OURS.get(name):
                body = got.get("body")
                text = body.get("error", "") if isinstance(body, dict) else got.get("message", "")
                if got.get("status", got.get("code")) not in ours[1] or not re.search(ours[2], text):
                    wrong.append((name, got, ours))
            elif got != GOLDEN[name]:
                wrong.append((name, got, GOLDEN[name]))
    finally:
        region.close()
    assert not wrong, "\n".join(f"{n}: {g}\n    want {w}" for n, g, w in wrong)
    assert server.process.poll() is None
