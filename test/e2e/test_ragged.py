"""Requests of different shapes in one batch, the inputs that describe it, and outputs that are cut by an input's shapes."""
import concurrent.futures
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper

import harness


ROWS = """name: "{name}"
backend: "{backend}"
max_batch_size: 8
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
RAGGED = ROWS + """
input {{ name: "R" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }}
output [ {{ name: "SUM" data_type: TYPE_FP32 dims: 1 }}, {{ name: "COUNT" data_type: TYPE_INT32 dims: 1 }},
  {{ name: "UPTO" data_type: TYPE_FP32 dims: 1 }}, {{ name: "MOST" data_type: TYPE_INT64 dims: 1 }},
  {{ name: "SHAPE" data_type: TYPE_INT32 dims: 2 }}, {{ name: "FLAT" data_type: TYPE_FP32 dims: 2 }},
  {{ name: "TWICE" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ]
batch_input [
  {{ kind: BATCH_ELEMENT_COUNT target_name: "count" data_type: TYPE_INT32 source_input: "R" }},
  {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "upto" data_type: TYPE_FP32 source_input: "R" }},
  {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "bounds" data_type: TYPE_INT32 source_input: "R" }},
  {{ kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "most" data_type: TYPE_INT32 source_input: "R" }},
  {{ kind: BATCH_ITEM_SHAPE target_name: "shape" data_type: TYPE_INT32 source_input: "R" }},
  {{ kind: BATCH_ITEM_SHAPE_FLATTEN target_name: "flat" data_type: TYPE_FP32 source_input: "R" }} ]
batch_output [ {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "TWICE" source_input: "R" }} ]
"""
ECHO = ROWS + """
input [ {{ name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true }},
  {{ name: "INPUT1" data_type: TYPE_INT32 dims: [ -1, 2 ] allow_ragged_batch: true }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }}, {{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1, 2 ] }} ]
"""

SEQUENCES = """name: "{name}"
backend: "{backend}"
max_batch_size: 4
instance_group {{ count: 1 kind: KIND_CPU }}
sequence_batching {{ STRATEGY control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }} }}
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }}
"""
DIRECT = SEQUENCES.replace("STRATEGY", "direct {{ max_queue_delay_microseconds: 20000 minimum_slot_utilization: 0.9 }}")
OLDEST = SEQUENCES.replace("STRATEGY", "oldest {{ max_candidate_sequences: 4 max_queue_delay_microseconds: 20000 }}")


def graph():
    """The sum of each request's elements, what the batch inputs say, and all elements twice."""
    fp, i32, i64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64

    def tensor(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    nodes = [
        helper.make_node("CumSum", ["R", "axis"], ["running"]),
        helper.make_node("Concat", ["zero", "running"], ["sums"], axis=0),
        helper.make_node("Gather", ["sums", "bounds"], ["at"], axis=0),
        helper.make_node("Slice", ["at", "first", "far"], ["ends"]),
        helper.make_node("Slice", ["at", "begin", "last"], ["starts"]),
        helper.make_node("Sub", ["ends", "starts"], ["own"]),
        helper.make_node("Reshape", ["own", "column"], ["SUM"]),
        helper.make_node("Reshape", ["count", "column"], ["COUNT"]),
        helper.make_node("Reshape", ["upto", "column"], ["UPTO"]),
        helper.make_node("Shape", ["most"], ["length"]),
        helper.make_node("Shape", ["COUNT"], ["rows"]),
        helper.make_node("Expand", ["length", "rows"], ["MOST"]),
        helper.make_node("Identity", ["shape"], ["SHAPE"]),
        helper.make_node("Reshape", ["flat", "pairs"], ["FLAT"]),
        helper.make_node("Mul", ["R", "two"], ["TWICE"]),
    ]
    weights = {"axis": np.int64(0), "zero": np.zeros(1, np.float32), "first": np.array([1]), "far": np.array([1 << 40]),
               "begin": np.array([0]), "last": np.array([-1]), "column": np.array([-1, 1]), "pairs": np.array([-1, 2]),
               "two": np.float32(2)}
    inputs = [tensor("R", fp, [None]), tensor("count", i32, [None]), tensor("upto", fp, [None]), tensor("bounds", i32, [None]),
              tensor("most", i32, [None]), tensor("shape", i32, [None, 2]), tensor("flat", fp, [None])]
    outputs = [tensor("SUM", fp, [None, 1]), tensor("COUNT", i32, [None, 1]), tensor("UPTO", fp, [None, 1]),
               tensor("MOST", i64, [None, 1]), tensor("SHAPE", i32, [None, 2]), tensor("FLAT", fp, [None, 2]),
               tensor("TWICE", fp, [None])]
    made = helper.make_graph(nodes, "ragged", inputs, outputs, [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], producer_name="sluice")
    model.ir_version = 8
    return model.SerializeToString()


def put(repository, name, config, backend, model=None):
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config.format(name=name, backend=backend))
    if model:
        (folder / "1" / "model.onnx").write_bytes(model)


@pytest.fixture(scope="module")
def ragged(built, tmp_path_factory):
    repository = tmp_path_factory.mktemp("ragged")
    put(repository, "ragged", RAGGED, "onnxruntime", graph())
    put(repository, "echo", ECHO, "identity")
    put(repository, "direct", DIRECT, "identity")
    put(repository, "oldest", OLDEST, "identity")
    s = harness.Server([repository])
    yield s
    assert s.stop() == 0, s.log()[-3000:]


class Clients:
    """A client for each thread: the HTTP one can't be shared."""

    def __init__(self, server, protocol):
        self.kit, self.address = (httpclient, server.http) if protocol == "http" else (grpcclient, server.grpc)
        self.own = threading.local()

    def infer(self, *args, **kwargs):
        if not hasattr(self.own, "client"):
            self.own.client = self.kit.InferenceServerClient(self.address)
        return self.own.client.infer(*args, **kwargs)


def client_of(server, protocol):
    clients = Clients(server, protocol)
    return clients.kit, clients


def tensor_of(kit, name, array, datatype):
    t = kit.InferInput(name, list(array.shape), datatype)
    t.set_data_from_numpy(array)
    return t


def executions(server, model):
    with httpclient.InferenceServerClient(server.http) as c:
        s = c.get_inference_statistics(model)["model_stats"][0]
    return int(s["inference_count"]), int(s["execution_count"])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_of_different_shapes_share_batches(ragged, protocol):
    kit, client = client_of(ragged, protocol)
    rng = np.random.RandomState(3)

    def one(i):
        a = rng.randint(0, 100, size=(1, 1 + i % 5, 1 + i % 3)).astype(np.float32)
        out = client.infer("ragged", [tensor_of(kit, "R", a, "FP32")])
        assert out.as_numpy("SUM").tolist() == [[a.sum()]]
        assert out.as_numpy("COUNT").tolist() == [[a.size]]
        assert out.as_numpy("UPTO")[0, 0] >= a.size
        assert out.as_numpy("MOST")[0, 0] >= a.size
        assert out.as_numpy("SHAPE").tolist() == [list(a.shape[1:])]
        assert out.as_numpy("FLAT").tolist() == [list(a.shape[1:])]
        assert np.array_equal(out.as_numpy("TWICE"), 2 * a)
        return out.as_numpy("UPTO")[0, 0] > a.size

    inferred, executed = executions(ragged, "ragged")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        shared = list(pool.map(one, range(128)))
    more, runs = executions(ragged, "ragged")
    assert more - inferred == 128
    assert runs - executed <= 64, "batches did not form"
    assert any(shared), "no request stood behind another one"


def test_requests_of_several_rows(ragged):
    kit, client = client_of(ragged, "http")

    def one(i):
        a = np.arange((1 + i % 3) * (2 + i), dtype=np.float32).reshape(1 + i % 3, 1, 2 + i)
        wanted = [kit.InferRequestedOutput(n) for n in ("SHAPE", "FLAT", "TWICE")]
        out = client.infer("ragged", [tensor_of(kit, "R", a, "FP32")], outputs=wanted)
        assert out.as_numpy("SHAPE").tolist() == [[1, 2 + i]] * a.shape[0]
        assert out.as_numpy("FLAT").tolist() == [[1, 2 + i]] * a.shape[0]
        assert np.array_equal(out.as_numpy("TWICE"), 2 * a)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(32)))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_backends_see_each_request_s_own_tensors(ragged, protocol):
    kit, client = client_of(ragged, protocol)

    def one(i):
        words = np.array([["x" * k for k in range(i % 4)]], dtype=object).reshape(1, i % 4)
        pairs = np.arange(2 * (i % 7), dtype=np.int32).reshape(1, i % 7, 2) + i
        inputs = [kit.InferInput("INPUT0", list(words.shape), "BYTES"), tensor_of(kit, "INPUT1", pairs, "INT32")]
        inputs[0].set_data_from_numpy(words)
        out = client.infer("echo", inputs)
        assert out.as_numpy("OUTPUT0").tolist() == [[w.encode() for w in words[0]]]
        assert np.array_equal(out.as_numpy("OUTPUT1"), pairs)

    inferred, executed = executions(ragged, "echo")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(128)))
    more, runs = executions(ragged, "echo")
    assert (more - inferred, runs - executed <= 64) == (128, True)


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_sequences_of_different_shapes_share_batches(ragged, model):
    kit, client = client_of(ragged, "grpc")
    before = executions(ragged, model)

    def sequence(k):
        for i in range(12):
            a = np.arange((k + i) % 5, dtype=np.int32).reshape(1, -1) + 100 * k
            out = client.infer(model, [tensor_of(kit, "INPUT0", a, "INT32")], sequence_id=k + 1, sequence_start=i == 0, sequence_end=i == 11)
            assert np.array_equal(out.as_numpy("OUTPUT0"), a)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(sequence, range(4)))
    after = executions(ragged, model)
    assert after[1] - before[1] < 48, "batches did not form"
