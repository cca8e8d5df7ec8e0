#!/usr/bin/env python3
"""Asks the real server what it answers to python_cases.py and writes python.json.

    original_python.py   needs scripts/peer.sh
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import original
import python_cases
import python_exchange


def end(server):
    """Without patience: after some of these models the real one does not stop by itself."""
    processes = original.harness.descendants(server.process.pid)
    server.process.terminate()
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    for pid in filter(original.harness.alive, processes):
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)


def begin(server):
    server.begin()
    for _ in range(300):
        if original.exchange.http(server.http, "/v2/health/ready", None, {})["status"] == 200:
            return
        time.sleep(0.2)
    raise SystemExit("the real server does not get ready")


def revive(server, answer):
    """Starts the server again where a request ended it or its model's process, which stays dead, or was not answered."""
    text = json.dumps(answer)
    dead = answer.get("status") == 0 and "TimeoutError" not in text
    if not dead and "is not healthy" not in text and "TimeoutError" not in text:
        return answer
    end(server)
    begin(server)
    return {"server ended": True} if dead else {"process ended": True} if "is not healthy" in text else {"hang": True}


def main():
    with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "log", "w+") as log:
        folder = pathlib.Path(folder)
        server = original.Original(python_exchange.lay(folder / "good", False), log)
        begin(server)
        try:
            golden = python_exchange.ask((server.http, server.grpc), lambda answer: revive(server, answer))
        finally:
            end(server)
        server = original.Original(python_exchange.lay(folder / "bad", True), log, "--model-control-mode=explicit")
        server.begin()
        try:
            golden["load"] = {n: python_exchange.load((server.http, server.grpc), n) for n in python_cases.LOAD}
        finally:
            end(server)
        text = json.dumps(golden, indent=1, ensure_ascii=False, sort_keys=True).replace(str(folder), "{repository}").replace(str(original.ROOT), "{sluice}")
    path = pathlib.Path(__file__).with_name("python.json")
    path.write_text(text + "\n")
    print(f"{path.name}: " + ", ".join(f"{len(v)} {k}" for k, v in golden.items()))


if __name__ == "__main__":
    main()
