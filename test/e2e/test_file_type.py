"""The Python model of the demo repository says what its client-side twin, examples/classify_file.py, says."""
import sys

import numpy as np
import pytest
import tritonclient.http as client

import harness

sys.path.insert(0, str(harness.ROOT / "examples"))

import classify_file  # noqa: E402

FILES = ["Makefile", "scripts/pin.py", "gateway/doc.go", "bin/sluice", "README.md", "compose.yaml", "models/magika/1/model.onnx"]


@pytest.fixture(scope="module")
def server(built):
    s = harness.Server(repositories=[harness.DEMO], flags=["--model-control-mode=explicit", "--load-model=magika", "--load-model=file_type"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


def told(server, contents):
    given = client.InferInput("CONTENT", [len(contents), 1], "BYTES")
    given.set_data_from_numpy(np.array([[c] for c in contents], np.object_))
    with client.InferenceServerClient(server.http) as c:
        answer = c.infer("file_type", [given])
    return answer.as_numpy("LABEL"), answer.as_numpy("SCORE")


def test_as_its_twin(server):
    paths = [str(harness.ROOT / f) for f in FILES]
    want = classify_file.classify(paths, server.http)
    labels, scores = told(server, [open(p, "rb").read() for p in paths])
    for (path, best), label, score in zip(want, labels, scores):
        assert [b[0] for b in best] == [s.decode() for s in label], path
        np.testing.assert_allclose([b[1] for b in best], score, atol=1e-4)


def test_short_ones(server):
    labels, scores = told(server, [b"", b"abc", b"\xff\xfe", b"   \n\t   \n "])
    assert [row[0] for row in labels] == [b"empty", b"txt", b"unknown", b"txt"] and (scores[:, 0] == 1).all()


def test_without_magika(server):
    """What the called model can't do is the caller's error, with its text."""
    with client.InferenceServerClient(server.http) as c:
        c.unload_model("magika")
        try:
            with pytest.raises(Exception, match="Model 'magika' is not ready"):
                told(server, [b"print('there are enough bytes here')\n"])
        finally:
            c.load_model("magika")
