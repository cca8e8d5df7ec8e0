#!/usr/bin/env python3
"""Asks the real server what it answers to memory_cases.py and writes golden_memory.json.

    original_memory.py         needs scripts/peer.sh and the test models (make models)
"""
import json
import pathlib
import tempfile

import exchange
import memory_cases
import original


def main():
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder) / "models"
        original.translate(original.ROOT / ".cache/test-models/models", repository)
        with open(pathlib.Path(folder) / "log", "w+") as log:
            server, region, golden = original.Original(repository, log), memory_cases.Region(), {}
            server.begin()
            try:
                for name, case in memory_cases.CASES.items():
                    golden[name] = region.read(*case[0][1:]) if len(case) == 1 else exchange.either((server.http, server.grpc), *case)
            finally:
                region.close()
                server.end()
    path = pathlib.Path(__file__).with_name("golden_memory.json")
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(golden)} answers")


if __name__ == "__main__":
    main()
