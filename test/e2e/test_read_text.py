"""The ensembles that read text, against the same models run by ONNX Runtime itself as their package runs them."""
import math
import zipfile

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont

import harness
import read_text

TEXTS = ["Serving models in a mesh", "one pipeline of 8 steps", "no code on the server"]


def page():
    image = Image.new("RGB", (640, 320), "white")
    draw = ImageDraw.Draw(image)
    for i, text in enumerate(TEXTS):
        draw.text((30, 30 + 90 * i), text, fill="black", font=ImageFont.load_default(36))
    return np.asarray(image)


@pytest.fixture(scope="module")
def package():
    """(sessions by name, characters) of the package's models."""
    wheel = next((harness.ROOT / ".cache" / "wheels").glob("rapidocr_onnxruntime-*.whl"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with zipfile.ZipFile(wheel) as z:
        sessions = {name: onnxruntime.InferenceSession(z.read(f"rapidocr_onnxruntime/models/{file}.onnx"), options)
                    for name, file in {"cls": "ch_ppocr_mobile_v2.0_cls_infer", "rec": "ch_PP-OCRv4_rec_infer"}.items()}
    characters = sessions["rec"].get_modelmeta().custom_metadata_map["character"].splitlines()
    return sessions, ["blank"] + characters + [" "]


def resized(image, height, width):
    """Linear interpolation between the centres of pixels, in plain numpy."""
    def axis(n, size):
        at = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, n - 1), (at - low).astype(np.float32)

    top, bottom, dy = axis(image.shape[0], height)
    left, right, dx = axis(image.shape[1], width)
    image = image.astype(np.float32)
    rows = image[top] * (1 - dy)[:, None, None] + image[bottom] * dy[:, None, None]
    return rows[:, left] * (1 - dx)[:, None] + rows[:, right] * dx[:, None]


def normal(image, width):
    """One line as the package's models take it."""
    used = min(math.ceil(48 * image.shape[1] / image.shape[0]), width)
    out = np.zeros((1, 3, 48, width), np.float32)
    out[0, :, :, :used] = (resized(image[:, :, ::-1], 48, used).transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return out


def expected(package, line):
    """(text, confidence) of a line."""
    sessions, characters = package
    if sessions["cls"].run(None, {"x": normal(line, 192)})[0][0, 1] > 0.9:
        line = line[::-1, ::-1]
    width = max(320, int(48 * line.shape[1] / line.shape[0]))
    scores = sessions["rec"].run(None, {"x": normal(line, width)})[0][0]
    best = scores.argmax(axis=1)
    keep = (best != np.concatenate(([-1], best[:-1]))) & (best != 0)
    return "".join(characters[i] for i in best[keep]), scores.max(axis=1)[keep].mean()


@pytest.mark.parametrize("grpc", [False, True])
def test_page(server, package, grpc):
    """Every line is found and read, also on its head, as the package's models read the same pixels."""
    reader = read_text.Server(server.grpc if grpc else server.http, grpc)
    image = page()
    try:
        found = read_text.read(reader, image)
        assert [text for _, text, _ in found] == TEXTS
        for (top, left, bottom, right), text, confidence in found:
            line = image[top:bottom, left:right]
            want, sure = expected(package, line)
            assert text == want and abs(confidence - sure) < 1e-3
            answer = reader.ask("read_line", "LINE", line[::-1, ::-1])
            assert b"".join(answer("CHARACTERS")).decode() == expected(package, line[::-1, ::-1])[0] == text
            assert answer("ANGLE")[0, 1] > 0.9
    finally:
        reader.close()


def test_a_page_without_text(server):
    reader = read_text.Server(server.http, False)
    try:
        assert read_text.read(reader, np.full((100, 200, 3), 255, np.uint8)) == []
    finally:
        reader.close()
