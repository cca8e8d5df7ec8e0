"""What a model takes is told when it is loaded, and given back when it is unloaded."""
import os

import numpy as np
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper

import harness

WIDTH = 32768  # 1024 x 32768 FP32: 128 MiB of weights
WEIGHTS = 1024 * WIDTH * 4
CONFIG = """backend: "onnxruntime"
max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU }
"""


def wide():
    nodes = [helper.make_node("MatMul", ["X", "w"], ["y"]), helper.make_node("ReduceMax", ["y"], ["Y"], axes=[1])]
    weights = np.random.default_rng(1).random((1024, WIDTH), dtype=np.float32)
    made = helper.make_graph(nodes, "wide", [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", 1024])],
                             [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", 1])], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], producer_name="sluice")
    model.ir_version = 8
    return model.SerializeToString()


def private(pid):
    """Resident bytes of a process without what it shares."""
    with open(f"/proc/{pid}/statm") as f:
        resident, shared = (int(n) for n in f.read().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def model(built, tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "model.onnx"
    path.write_bytes(wide())
    yield path
    path.unlink()


@pytest.fixture
def explicit(start, model, tmp_path):
    folder = tmp_path / "wide" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(CONFIG)
    os.link(model, folder / "model.onnx")
    return start([tmp_path], flags=["--model-control-mode=explicit"])


def test_unload_gives_the_memory_back(explicit):
    (pid,) = explicit.workers()
    client = httpclient.InferenceServerClient(explicit.http)
    x = httpclient.InferInput("X", [8, 1024], "FP32")
    x.set_data_from_numpy(np.ones((8, 1024), np.float32))
    after = []
    for _ in range(5):
        client.load_model("wide")
        loaded = private(pid)
        assert client.infer("wide", [x]).as_numpy("Y").shape == (8, 1)
        usage = client.get_inference_statistics("wide")["model_stats"][0]["memory_usage"]
        assert [u["type"] for u in usage] == ["CPU"], usage
        assert WEIGHTS <= int(usage[0]["byte_size"]) <= 2 * WEIGHTS, usage
        assert loaded > WEIGHTS
        client.unload_model("wide")
        harness.wait_for(lambda: not client.is_model_ready("wide"), 10, "unloaded")
        harness.wait_for(lambda: private(pid) < loaded - WEIGHTS * 0.9, 10, f"memory given back: {private(pid)} of {loaded}")
        after.append(private(pid))
        print(f"loaded {loaded >> 20} MiB, memory_usage {int(usage[0]['byte_size']) >> 20} MiB, unloaded {after[-1] >> 20} MiB")
    # one arena of the allocator may come in any of the rounds, and stays; a leak grows in each of them
    grown = sorted(b - a for a, b in zip(after, after[1:]))
    assert grown[-1] < 48 << 20 and sum(grown[:-1]) < 16 << 20, after
    client.close()


def test_another_instance_shares_the_weights(explicit, tmp_path):
    (pid,) = explicit.workers()
    with httpclient.InferenceServerClient(explicit.http) as client:
        client.load_model("wide")
        one = private(pid)
        (tmp_path / "wide" / "config.pbtxt").write_text(CONFIG.replace("count: 1", "count: 2"))
        client.load_model("wide")
        usage = client.get_inference_statistics("wide")["model_stats"][0]["memory_usage"]
        assert WEIGHTS <= int(usage[0]["byte_size"]) <= 2 * WEIGHTS, usage
        harness.wait_for(lambda: private(pid) < one + WEIGHTS / 2, 10, f"no second copy of the weights: {private(pid)} after {one}")
