#!/usr/bin/env python3
"""Reads the text of an image through a running server (make run), line by line.

    read_text.py IMAGE [--url HOST:PORT] [--grpc] [--boxes]

The server's ensemble find_text says which pixels are text, read_line what is written in a line; what lies between, taking
lines out of the image, is done here. Lines must be level. Needs tritonclient and pillow.
"""
import argparse
import concurrent.futures
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http
from PIL import Image
from tritonclient.utils import InferenceServerException

LARGEST = 2000  # longer sides are shrunk
LIKELY = 0.5  # of a box, on average
SPREAD = 1.6  # the detector marks the middle of the letters


class Server:
    """A running server."""

    def __init__(self, url, grpc):
        self.client = tritonclient.grpc if grpc else tritonclient.http
        self.server = self.client.InferenceServerClient(url, **({} if grpc else {"concurrency": 4}))
        self.threads = concurrent.futures.ThreadPoolExecutor(4) if grpc else None

    def given(self, name, image):
        tensor = self.client.InferInput(name, image.shape, "UINT8")
        tensor.set_data_from_numpy(np.ascontiguousarray(image))
        return tensor

    def ask(self, model, name, image):
        """A model's outputs, by name, for an RGB image."""
        return self.server.infer(model, [self.given(name, image)]).as_numpy

    def send(self, model, name, image):
        """The same, but what it returns waits for the answer."""
        given = self.given(name, image)
        if self.threads:
            waiting = self.threads.submit(self.server.infer, model, [given])
            return lambda: waiting.result().as_numpy
        waiting = self.server.async_infer(model, [given])
        return lambda: waiting.get_result().as_numpy

    def close(self):
        if self.threads:
            self.threads.shutdown()
        self.server.close()


def regions(mask):
    """The bounds (top, left, bottom, right) of the connected parts of a mask: runs of each row, joined by a union-find."""
    parent, bounds, above = [], [], []

    def find(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row, [0])).astype(np.int8)))
        here = []
        for left, right in zip(edges[::2], edges[1::2]):
            i = len(parent)
            parent.append(i)
            bounds.append((y, left, y + 1, right))
            for start, end, other in above:
                if start <= right and left <= end:
                    parent[find(other)] = find(i)
            here.append((left, right, i))
        above = here
    joined = {}
    for i, (top, left, bottom, right) in enumerate(bounds):
        t, l, b, r = joined.get(find(i), (top, left, bottom, right))
        joined[find(i)] = (min(t, top), min(l, left), max(b, bottom), max(r, right))
    return list(joined.values())


def lines(mask, likely, shape):
    """The boxes of lines in an image of that shape, from top to bottom and left to right."""
    found = []
    rows, columns = shape[0] / mask.shape[0], shape[1] / mask.shape[1]
    for top, left, bottom, right in regions(mask):
        height, width = bottom - top, right - left
        if min(height, width) < 3 or likely[top:bottom, left:right].mean() < LIKELY:
            continue
        by = height * width * SPREAD / (2 * (height + width))
        found.append((max(0, round((top - by) * rows)), max(0, round((left - by) * columns)),
                      min(shape[0], round((bottom + by) * rows)), min(shape[1], round((right + by) * columns))))
    return sorted(found)


def read(server, image):
    """(box, text, confidence) of each line of an RGB image."""
    maps = server.ask("find_text", "IMAGE", image)
    boxes = lines(maps("MASK"), maps("LIKELY"), image.shape)
    crops = [image[top:bottom, left:right] for top, left, bottom, right in boxes]
    asked = [server.send("read_line", "LINE", crop) for crop in crops]  # lines of the same width share a batch
    answers = [answer() for answer in asked]
    return [(box, b"".join(a("CHARACTERS")).decode(), float(a("CONFIDENCE")[0])) for box, a in zip(boxes, answers)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("image")
    p.add_argument("--url", help="localhost:8000, or localhost:8001 with --grpc")
    p.add_argument("--grpc", action="store_true", help="over gRPC in place of HTTP")
    p.add_argument("--boxes", action="store_true", help="where each line stands: top, left, bottom, right")
    args = p.parse_args()
    url = args.url or ("localhost:8001" if args.grpc else "localhost:8000")
    try:
        image = Image.open(args.image).convert("RGB")
        image.thumbnail((LARGEST, LARGEST))
        server = Server(url, args.grpc)
        try:
            found = read(server, np.asarray(image))
        finally:
            server.close()
    except (OSError, InferenceServerException) as err:  # no image, no server, no such model
        sys.exit(f"{url}: {err}")
    for box, text, confidence in found:
        where = "%4d %4d %4d %4d  " % box if args.boxes else ""
        print(f"{where}{confidence:.3f}  {text}")


if __name__ == "__main__":
    main()
