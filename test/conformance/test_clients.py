"""The public clients, in all their forms, against every datatype and extension."""
import asyncio
import queue

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

MODULES = {"http": httpclient, "grpc": grpcclient}
SAMPLES = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 1, 255]], np.uint8),
    "UINT16": np.array([[0, 1, 65535]], np.uint16),
    "UINT32": np.array([[0, 1, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 1, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-2**15, 0, 2**15 - 1]], np.int16),
    "INT32": np.array([[-2**31, 0, 2**31 - 1]], np.int32),
    "INT64": np.array([[-2**63, 0, 2**63 - 1]], np.int64),
    "FP16": np.array([[-1.5, 0, np.inf]], np.float16),
    "BF16": np.array([[-1.5, 0, 3e38]], ml_dtypes.bfloat16),
    "FP32": np.array([[-1.5, 1e-45, 3.4e38]], np.float32),
    "FP64": np.array([[-1.5, 5e-324, 1.7e308]], np.float64),
    "BYTES": np.array([[b"", b"\x00\xff", "ü".encode() * 1000]], np.object_),
}


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def client(server, protocol):
    c = MODULES[protocol].InferenceServerClient(getattr(server, protocol))
    yield c
    c.close()


def given(module, name, array, datatype, **kwargs):
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **kwargs)
    return tensor


def pair(module, rows=1, **kwargs):
    a = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    b = np.full_like(a, 3)
    return [given(module, "INPUT0", a, "INT32", **kwargs), given(module, "INPUT1", b, "INT32", **kwargs)], a + b, a - b


def check_pair(result, total, difference):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), total)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), difference)


def field(answer, name):
    """One field of a dict (HTTP) or a message (gRPC)."""
    return answer[name] if isinstance(answer, dict) else getattr(answer, name)


def test_health(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("simple")
    assert not client.is_model_ready("nope")
    assert client.is_model_ready("versions", "3") and not client.is_model_ready("versions", "2")


def test_server_metadata(client):
    metadata = client.get_server_metadata()
    assert field(metadata, "name") == "triton" and field(metadata, "version")
    assert {"classification", "binary_tensor_data", "parameters", "statistics", "logging", "model_configuration",
            "schedule_policy"} <= set(field(metadata, "extensions"))


def test_model_metadata(client, protocol):
    metadata = client.get_model_metadata("simple")
    assert field(metadata, "platform") == "onnxruntime_onnx" and list(field(metadata, "versions")) == ["1"]
    shapes = {field(t, "name"): (field(t, "datatype"), [int(d) for d in field(t, "shape")]) for t in field(metadata, "inputs")}
    assert shapes == {"INPUT0": ("INT32", [-1, 16]), "INPUT1": ("INT32", [-1, 16])}


def test_completed_config(client, protocol):
    """mlp's config.pbtxt names no tensor: they come from the model file."""
    config = client.get_model_config("mlp", **({"as_json": True} if protocol == "grpc" else {}))
    config = config.get("config", config)
    assert config["backend"] == "onnxruntime" and config["max_batch_size"] == 32
    assert [(t["name"], t["data_type"], [int(d) for d in t["dims"]]) for t in config["input"]] == [("INPUT0", "TYPE_FP32", [512])]
    assert [(t["name"], t["data_type"], [int(d) for d in t["dims"]]) for t in config["output"]] == [("OUTPUT0", "TYPE_FP32", [128])]
    assert [int(n) for n in config["dynamic_batching"]["preferred_batch_size"]] == [8, 16, 32]
    assert int(config["dynamic_batching"]["max_queue_delay_microseconds"]) == 200
    assert config["parameters"]["intra_op_thread_count"]["string_value"] == "1"


def test_index(client, protocol):
    index = client.get_model_repository_index()
    rows = {(field(m, "name"), field(m, "version")): field(m, "state") for m in (index if protocol == "http" else index.models)}
    assert rows["simple", "1"] == rows["versions", "1"] == rows["versions", "3"] == "READY" and ("versions", "2") not in rows


def test_statistics(client, protocol):
    def one():
        s = client.get_inference_statistics("brief", **({"as_json": True} if protocol == "grpc" else {}))["model_stats"][0]
        return s, {k: int(s.get(k, 0)) for k in ("inference_count", "execution_count")}, int(
            s["inference_stats"]["success"].get("count", 0))
    module = MODULES[protocol]
    before, counts, successes = one()
    data = np.arange(3, dtype=np.int32).reshape(3, 1)
    client.infer("brief", [given(module, "INPUT0", data, "INT32")])
    after, later, more = one()
    assert later["inference_count"] - counts["inference_count"] == 3 and later["execution_count"] - counts["execution_count"] == 1
    assert more - successes == 1
    stats = after["inference_stats"]
    assert int(stats["success"]["ns"]) >= int(stats["compute_infer"]["ns"]) >= 5_000_000
    assert int(after["last_inference"]) > 1_600_000_000_000
    assert {int(b["batch_size"]) for b in after["batch_stats"]} >= {3}


def test_statistics_of_all(client, protocol):
    all_of_them = client.get_inference_statistics()
    names = {field(m, "name") for m in field(all_of_them, "model_stats")}
    assert {"simple", "mlp", "identity_int8"} <= names


def test_log_settings(client, protocol):
    """Changed, seen and set back."""
    client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    try:
        settings = client.get_log_settings(**({"as_json": True} if protocol == "grpc" else {}))
        text = str(settings)
        assert "ISO8601" in text and "1" in text
    finally:
        client.update_log_settings({"log_verbose_level": 0, "log_format": "default"})


@pytest.mark.parametrize("datatype", SAMPLES)
def test_datatypes(client, protocol, datatype):
    module, array = MODULES[protocol], SAMPLES[datatype]
    result = client.infer("identity_" + datatype.lower(), [given(module, "INPUT0", array, datatype)])
    got = result.as_numpy("OUTPUT0")
    assert got.shape == array.shape
    if datatype == "BF16":
        got = np.asarray(got).astype(np.float32)
        array = array.astype(np.float32)
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("datatype", [d for d in SAMPLES if d not in ("FP16", "BF16")])
def test_datatypes_by_json(server, datatype):
    array = SAMPLES[datatype]
    if datatype == "BYTES":
        array = np.array([["", "a\u0000b", "ü\"\\" * 1000]], np.object_)
    with httpclient.InferenceServerClient(server.http) as c:
        tensor = given(httpclient, "INPUT0", array, datatype, binary_data=False)
        wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)
        result = c.infer("identity_" + datatype.lower(), [tensor], outputs=[wanted])
        assert "data" in result.get_output("OUTPUT0")
        got = result.as_numpy("OUTPUT0")
    if datatype == "BYTES":
        got = np.array([[x.decode() if isinstance(x, bytes) else x for x in got[0]]], np.object_)
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("elements", [0, 1, 100, 8191, 8192, 150_000, 4_000_000])
def test_sizes(client, protocol, elements):
    """From nothing to 16 MB, on both sides of where bodies go to shared memory."""
    array = np.arange(elements, dtype=np.float32).reshape(1, elements)
    result = client.infer("identity_fp32", [given(MODULES[protocol], "INPUT0", array, "FP32")])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("rows", [1, 8])
def test_onnx_model(client, protocol, rows):
    inputs, total, difference = pair(MODULES[protocol], rows)
    result = client.infer("simple", inputs, request_id="r 1")
    check_pair(result, total, difference)
    response = result.get_response()
    assert field(response, "id") == "r 1" and field(response, "model_name") == "simple" and field(response, "model_version") == "1"


def test_one_output(client, protocol):
    module = MODULES[protocol]
    inputs, _, difference = pair(module)
    result = client.infer("simple", inputs, outputs=[module.InferRequestedOutput("OUTPUT1")])
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), difference)


def test_strings(client, protocol):
    module = MODULES[protocol]
    a = np.array([[str(i) for i in range(16)]], np.object_)
    b = np.array([["5"] * 16], np.object_)
    result = client.infer("simple_string", [given(module, "INPUT0", a, "BYTES"), given(module, "INPUT1", b, "BYTES")])
    assert [int(x) for x in result.as_numpy("OUTPUT0")[0]] == [i + 5 for i in range(16)]
    assert [int(x) for x in result.as_numpy("OUTPUT1")[0]] == [i - 5 for i in range(16)]


def test_mlp(client, protocol):
    """The batched answer is the sum of the single ones."""
    module = MODULES[protocol]
    array = np.random.default_rng(1).standard_normal((4, 512), np.float32)
    whole = client.infer("mlp", [given(module, "INPUT0", array, "FP32")]).as_numpy("OUTPUT0")
    single = [client.infer("mlp", [given(module, "INPUT0", row[np.newaxis], "FP32")]).as_numpy("OUTPUT0")[0] for row in array]
    np.testing.assert_allclose(whole, np.stack(single), rtol=1e-3, atol=1e-4)


def test_classification(client, protocol):
    module = MODULES[protocol]
    array = np.array([[0.5, 4, 1, 3], [9, 8, 7, 6]], np.float32)
    wanted = module.InferRequestedOutput("OUTPUT0", class_count=2)
    result = client.infer("classes", [given(module, "INPUT0", array, "FP32")], outputs=[wanted]).as_numpy("OUTPUT0")
    assert [[x.decode() for x in row] for row in result] == [["4.000000:1:b", "3.000000:3:d"], ["9.000000:0:a", "8.000000:1:b"]]


def test_parameters_accepted(client, protocol):
    inputs, total, difference = pair(MODULES[protocol])
    check_pair(client.infer("simple", inputs, parameters={"a": 1, "b": True, "c": "x"}, priority=0, timeout=5_000_000), total, difference)


def test_reserved_parameter(client, protocol):
    inputs, _, _ = pair(MODULES[protocol])
    with pytest.raises(InferenceServerException, match="triton_"):
        client.infer("simple", inputs, parameters={"triton_x": 1})


def test_error_leaves_connection_usable(client, protocol):
    module = MODULES[protocol]
    inputs, total, difference = pair(module)
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="unexpected inference input 'INPUT7' for model 'simple'"):
            client.infer("simple", [inputs[0], given(module, "INPUT7", total, "INT32")])
        check_pair(client.infer("simple", inputs), total, difference)


def test_model_error(client, protocol):
    """A model's own failure is one request's, with its text."""
    module = MODULES[protocol]
    data = given(module, "INPUT0", np.zeros((1, 2), np.int32), "INT32")
    with pytest.raises(InferenceServerException, match="on purpose"):
        client.infer("identity_int32", [data], parameters={"fail": "on purpose"})
    client.infer("identity_int32", [data])


def test_later_features_name_themselves(client, protocol):
    for call in (lambda: client.load_model("simple"),):
        with pytest.raises(InferenceServerException) as e:
            call()
        assert e.value.status() in ("501", "StatusCode.UNIMPLEMENTED", "503", "StatusCode.UNAVAILABLE"), e.value


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_http(server, algorithm):
    array = np.zeros((1, 50_000), np.float32)
    with httpclient.InferenceServerClient(server.http) as c:
        result = c.infer("identity_fp32", [given(httpclient, "INPUT0", array, "FP32")], request_compression_algorithm=algorithm,
                         response_compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_grpc(server, algorithm):
    array = np.zeros((1, 50_000), np.float32)
    with grpcclient.InferenceServerClient(server.grpc) as c:
        result = c.infer("identity_fp32", [given(grpcclient, "INPUT0", array, "FP32")], compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


def test_async_http(server):
    with httpclient.InferenceServerClient(server.http, concurrency=8) as c:
        inputs, total, difference = pair(httpclient)
        waiting = [c.async_infer("simple", inputs, request_id=str(i)) for i in range(64)]
        for i, w in enumerate(waiting):
            result = w.get_result()
            check_pair(result, total, difference)
            assert result.get_response()["id"] == str(i)


def test_async_grpc(server):
    with grpcclient.InferenceServerClient(server.grpc) as c:
        inputs, total, difference = pair(grpcclient)
        done = queue.Queue()
        for i in range(64):
            c.async_infer("simple", inputs, callback=lambda result, error: done.put((result, error)), request_id=str(i))
        seen = set()
        for _ in range(64):
            result, error = done.get(timeout=20)
            assert error is None, error
            check_pair(result, total, difference)
            seen.add(result.get_response().id)
        assert seen == {str(i) for i in range(64)}


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_asyncio(server, name):
    async def main():
        module, aio = (httpclient, httpaio) if name == "http" else (grpcclient, grpcaio)
        async with aio.InferenceServerClient(getattr(server, name)) as c:
            assert await c.is_server_ready() and await c.is_model_ready("simple")
            inputs, total, difference = pair(module)
            for result in await asyncio.gather(*(c.infer("simple", inputs) for _ in range(32))):
                check_pair(result, total, difference)
            with pytest.raises(InferenceServerException, match="nope"):
                await c.infer("nope", inputs)
    asyncio.run(asyncio.wait_for(main(), 60))


def test_batches_form(server):
    """32 callers at once fill batches; every one gets its own rows back."""
    async def main():
        async with grpcaio.InferenceServerClient(server.grpc) as c:
            async def one(i):
                data = np.array([[i]], np.int32)
                result = await c.infer("brief", [given(grpcclient, "INPUT0", data, "INT32")])
                assert result.as_numpy("OUTPUT0").tolist() == [[i]]
            await asyncio.gather(*(one(i) for i in range(64)))
    before = server.get("/v2/models/brief/stats")["model_stats"][0]
    asyncio.run(asyncio.wait_for(main(), 60))
    after = server.get("/v2/models/brief/stats")["model_stats"][0]
    requests = after["inference_count"] - before["inference_count"]
    executions = after["execution_count"] - before["execution_count"]
    assert requests == 64 and executions <= 32, f"{requests} requests in {executions} executions"
