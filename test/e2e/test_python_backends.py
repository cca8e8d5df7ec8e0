"""A folder with a model.py in --backend-directory serves models of its name: Triton's Python-based backends."""
import json

import numpy as np
import pytest
import tritonclient.grpc as client

import harness

SHOUT = '''
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LOUD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.name = args["model_name"] + args["model_version"]
        with open(os.path.join(pb_utils.get_model_dir(), "end.txt")) as f:
            self.end = f.read().strip()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].decode().split():
                loud = np.array([f"{word.upper()}{self.end} {self.name}".encode()], np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("LOUD", loud)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    """Two models of one backend, one of them with two versions."""
    folder = tmp_path_factory.mktemp("python-backends")
    (folder / "backends" / "shout").mkdir(parents=True)
    (folder / "backends" / "shout" / "model.py").write_text(SHOUT)
    for model, versions in (("hello", {1: "!", 2: "!!"}), ("question", {1: "?"})):
        for version, end in versions.items():
            (folder / "models" / model / str(version)).mkdir(parents=True)
            (folder / "models" / model / str(version) / "end.txt").write_text(end)
        (folder / "models" / model / "config.pbtxt").write_text('backend: "shout"\nversion_policy { all { } }\n')
    s = harness.Server(repositories=[folder / "models"], flags=[f"--backend-directory={folder / 'backends'}"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.mark.parametrize("model,version,want", [
    ("hello", "1", ["A! hello1", "B! hello1"]), ("hello", "2", ["A!! hello2", "B!! hello2"]), ("question", "1", ["A? question1", "B? question1"])])
def test_answers(server, model, version, want):
    import queue
    came = queue.Queue()
    with client.InferenceServerClient(server.grpc) as c:
        c.start_stream(lambda result, error: came.put((result, error)))
        given = client.InferInput("TEXT", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"a b"], np.object_))
        c.async_stream_infer(model, [given], model_version=version)
        got = []
        for _ in want:
            result, error = came.get(timeout=60)
            assert error is None, error
            got.append(result.as_numpy("LOUD")[0].decode())
        c.stop_stream()
    assert got == want


def test_config(server):
    status, _, body = server.ask("/v2/models/hello/config") if hasattr(server, "ask") else (None, None, None)
    config = json.loads(body)
    assert status == 200 and config["backend"] == "shout" and config["model_transaction_policy"] == {"decoupled": True}, config
