#!/usr/bin/env python3
"""What type is this file? Asks the model "magika" of a running server and prints the three best labels with scores.

    classify_file.py FILE... [--url HOST:PORT] [--grpc] [--json]

Over HTTP (localhost:8000) or, with --grpc, over gRPC (localhost:8001). Files of fewer than 8 meaningful bytes tell the
model nothing; as magika's own package does, they are named by what their bytes are (empty, txt, unknown) without
asking. Needs tritonclient[http] or tritonclient[grpc].
"""
import argparse
import json
import os
import string
import sys

import numpy as np
from tritonclient.utils import InferenceServerException

TOKENS = 1024  # from the beginning, and as many from the end
BLOCK = 4096  # bytes read at either end
PADDING = 256  # the token where there is no byte
MEANINGFUL = 8  # fewer bytes than this are not worth a question
BLANKS = string.whitespace.encode()


def features(path):
    """The model's input for one file: int32 [2048], or None where there are too few bytes."""
    size = os.path.getsize(path)
    if size < MEANINGFUL:
        return None
    with open(path, "rb") as f:
        head = f.read(min(BLOCK, size)).lstrip(BLANKS)[:TOKENS]
        f.seek(max(0, size - BLOCK))
        tail = f.read().rstrip(BLANKS)[-TOKENS:]
    if len(head) < MEANINGFUL:
        return None
    tokens = np.full(2 * TOKENS, PADDING, np.int32)
    tokens[:len(head)] = np.frombuffer(head, np.uint8)
    if tail:
        tokens[-len(tail):] = np.frombuffer(tail, np.uint8)
    return tokens


def by_its_bytes(path):
    """The label of a file that is too short for the model."""
    with open(path, "rb") as f:
        data = f.read(BLOCK)
    if not data:
        return "empty"
    try:
        data.decode("utf-8")
        return "txt"
    except UnicodeDecodeError:
        return "unknown"


def classify(paths, url, grpc=False, top=3):
    """[(path, [(label, score), ...]), ...], the best label first."""
    if grpc:
        import tritonclient.grpc as client
    else:
        import tritonclient.http as client
    server = client.InferenceServerClient(url)
    answers = []
    try:
        for path in paths:
            tokens = features(path)
            if tokens is None:
                answers.append((path, [(by_its_bytes(path), 1.0)]))
                continue
            given = client.InferInput("bytes", [1, 2 * TOKENS], "INT32")
            given.set_data_from_numpy(tokens[np.newaxis])
            wanted = client.InferRequestedOutput("target_label", class_count=top)
            result = server.infer("magika", [given], outputs=[wanted]).as_numpy("target_label")
            answers.append((path, [split(entry) for entry in result.reshape(-1)]))
    finally:
        server.close()
    return answers


def split(entry):
    """One entry of the classification extension, b"score:index:label"."""
    score, _, label = entry.decode().split(":", 2)
    return label, float(score)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument("--url", metavar="HOST:PORT", help="localhost:8000, or localhost:8001 with --grpc, if not given")
    p.add_argument("--grpc", action="store_true", help="ask over gRPC in place of HTTP")
    p.add_argument("--json", action="store_true", help="print JSON")
    args = p.parse_args()
    missing = [f for f in args.files if not os.path.isfile(f)]
    if missing:
        sys.exit("not a file: " + ", ".join(missing))
    url = args.url or ("localhost:8001" if args.grpc else "localhost:8000")
    try:
        answers = classify(args.files, url, args.grpc)
    except (OSError, InferenceServerException) as err:  # no server, no such model, a file that can't be read
        sys.exit(f"{url}: {err}")
    if args.json:
        print(json.dumps([{"path": path, "labels": labels} for path, labels in answers], indent=1))
        return
    width = max(len(f) for f in args.files)
    for path, labels in answers:
        print(f"{path:<{width}}  " + "  ".join(f"{label} {score:.4f}" for label, score in labels))


if __name__ == "__main__":
    main()
