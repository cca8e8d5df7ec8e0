"""Repositories on S3: served from a local S3 server, from checked copies when it is gone, and polled for changes."""
import json
import os
import pathlib
import subprocess
import urllib.request

import numpy as np
import pytest
import tritonclient.http as httpclient

import harness

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
CONFIG = """backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


@pytest.fixture(scope="module")
def s3_binary(tmp_path_factory):
    binary = tmp_path_factory.mktemp("s3") / "s3server"
    subprocess.run(["go", "build", "-o", binary, "./test/e2e/s3server"], cwd=harness.ROOT, check=True)
    return binary


class S3:
    """A local S3 server with the bucket "bucket"."""

    def __init__(self, binary, address="127.0.0.1:0"):
        self.process = subprocess.Popen([binary, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()

    def put(self, key, data):
        request = urllib.request.Request(f"http://{self.address}/bucket/{key}", data=data, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def delete(self, key):
        urllib.request.urlopen(urllib.request.Request(f"http://{self.address}/bucket/{key}", method="DELETE"), timeout=10).close()

    def put_folder(self, folder, prefix):
        for path in sorted(pathlib.Path(folder).rglob("*")):
            key = f"{prefix}/{path.relative_to(folder)}"
            if path.is_file():
                self.put(key, path.read_bytes())
            elif not any(path.iterdir()):
                self.put(key + "/", b"")

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture
def s3(s3_binary):
    server = S3(s3_binary)
    yield server
    server.process.kill()
    server.process.wait(10)


@pytest.fixture
def cloud(start, s3, tmp_path, monkeypatch):
    """Starts servers on a path of the bucket, with one cache folder."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TRITON_CLOUD_CREDENTIAL_PATH", raising=False)
    return lambda path="models", flags=(), **kw: start(
        repositories=[f"s3://{s3.address}/bucket/{path}"], flags=[f"--cloud-cache-directory={tmp_path / 'cache'}", "--exit-grace-ms=0", *flags], **kw)


def add(server):
    """What `simple` makes of 0…15 and ones."""
    with httpclient.InferenceServerClient(server.http) as c:
        inputs = [httpclient.InferInput(n, [1, 16], "INT32") for n in ("INPUT0", "INPUT1")]
        inputs[0].set_data_from_numpy(np.arange(16, dtype=np.int32)[None])
        inputs[1].set_data_from_numpy(np.ones((1, 16), np.int32))
        return c.infer("simple", inputs).as_numpy("OUTPUT0").tolist()


def objects(cache, content):
    return [p for p in cache.glob("objects/*/*") if p.read_bytes() == content]


def test_demo_models_and_restarts(cloud, s3, tmp_path):
    """The demo models are served from S3; restarted without it from the cache; damage is noticed, and mended when it is back."""
    s3.put_folder(harness.DEMO, "models")
    want = [list(range(1, 17))]
    s = cloud()
    assert add(s) == want and s.get("/v2/models/magika")["versions"] == ["1"]
    assert "copied " in s.log()
    assert s.stop() == 0

    address, weights = s3.address, (harness.DEMO / "simple" / "1" / "model.onnx").read_bytes()
    s3.stop()
    s = cloud()
    assert add(s) == want
    assert "can't be reached; its copies in the cache were checked and are served" in s.log()
    assert s.stop() == 0

    copies = objects(tmp_path / "cache", weights)
    assert len(copies) == 1
    copies[0].chmod(0o600)
    copies[0].write_bytes(bytes([weights[0] ^ 1]) + weights[1:])
    s = cloud(flags=["--exit-on-error=false", "--strict-readiness=false"])
    assert s.ask("/v2/models/simple/ready")[0] == 400 and s.ask("/v2/models/magika/ready")[0] == 200
    assert "is damaged" in s.log(), s.log()[-6000:]
    assert s.stop() == 0

    back = S3(s3.process.args[0], address)
    try:
        back.put_folder(harness.DEMO, "models")
        s = cloud()
        assert add(s) == want
    finally:
        back.stop()


def test_poll(cloud, s3):
    """Changed models are loaded again, new ones come, those that are gone go."""
    s3.put("models/m/config.pbtxt", CONFIG.encode())
    s3.put("models/m/1/", b"")
    s = cloud(flags=["--model-control-mode=poll", "--repository-poll-secs=1"])
    s3.put("models/m/config.pbtxt", CONFIG.replace("4", "8").encode())
    s3.put("models/n/config.pbtxt", CONFIG.encode())
    s3.put("models/n/1/", b"")
    harness.wait_for(lambda: s.get("/v2/models/m/config")["max_batch_size"] == 8, 15, "the changed config")
    harness.wait_for(lambda: s.status("/v2/models/n/ready") == 200, 15, "the new model")
    for key in ("models/m/config.pbtxt", "models/m/1/"):
        s3.delete(key)
    harness.wait_for(lambda: s.status("/v2/models/m/ready") != 200, 15, "the model that is gone unloaded")
    assert s.status("/v2/models/n/ready") == 200
    s3.stop()
    harness.wait_for(lambda: "can't be reached" in s.log(), 15, "told that S3 is away")
    assert s.status("/v2/models/n/ready") == 200


def test_explicit(cloud, s3, tmp_path):
    """Only what is loaded is copied; a load takes what S3 holds then."""
    for name in ("a", "b"):
        s3.put(f"models/{name}/config.pbtxt", CONFIG.encode())
        s3.put(f"models/{name}/1/data", name.encode())
    s = cloud(flags=["--model-control-mode=explicit", "--load-model=a"])
    cache = tmp_path / "cache"
    assert objects(cache, b"a") and not objects(cache, b"b")
    assert s.ask("/v2/repository/models/b/load", b"")[0] == 200 and objects(cache, b"b")
    s3.put("models/b/config.pbtxt", CONFIG.replace("4", "6").encode())
    assert s.ask("/v2/repository/models/b/load", b"")[0] == 200
    assert s.get("/v2/models/b/config")["max_batch_size"] == 6
    status, _, body = s.ask("/v2/repository/models/none/load", b"")
    assert status != 200 and "failed to load 'none'" in json.loads(body)["error"]


def test_nothing_there(s3, tmp_path, monkeypatch):
    """Without the bucket and without copies the server does not start, and says why."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    s3.stop()
    done = subprocess.run([harness.BINARY, "serve", f"--model-repository=s3://{s3.address}/bucket/models", f"--cloud-cache-directory={tmp_path / 'c'}",
                           "--http-port=0", "--grpc-port=0", "--metrics-port=0"], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 1 and f"failed to poll model repository 's3://{s3.address}/bucket/models'" in done.stderr
    assert "connection refused" in done.stderr
