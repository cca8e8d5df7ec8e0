"""Streams with the public clients: mixed, in order, cancelled, slow, with a worker that dies, over HTTP as events."""
import asyncio
import http.client
import json
import queue
import socket
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient

import harness

REPEAT = """backend: "repeat"
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }, { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
model_transaction_policy { decoupled: true }
instance_group { count: 4 kind: KIND_CPU }
parameters { key: "allow_crash" value { string_value: "true" } }
"""
IDENTITY = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 2 kind: KIND_CPU }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, text in (("repeat", REPEAT), ("identity", IDENTITY)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


@pytest.fixture(scope="module", params=["sluice", "library"])
def server(built, folder, request):
    flags = [f"--{p}-transport={request.param}" for p in ("http", "grpc")]
    s = harness.Server(repositories=[folder], flags=flags)
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


def tensors(client, **values):
    made = []
    for name, array in values.items():
        kind = {"int32": "INT32", "uint32": "UINT32"}[str(array.dtype)]
        made.append(client.InferInput(name, array.shape, kind))
        made[-1].set_data_from_numpy(array)
    return made


def repeat(client, values, delays=None, wait=0):
    return tensors(client, IN=np.array(values, np.int32), DELAY=np.array(delays or [0] * len(values), np.uint32), WAIT=np.array([wait], np.uint32))


def identity(client, *values):
    return tensors(client, INPUT0=np.array(values, np.int32))


def count(server, name, model):
    """The sum of a metric's series of a model."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in server.metrics_text().splitlines()
               if line.startswith(f"{name}{{") and f'model="{model}"' in line)


def success(server, model):
    return count(server, "nv_inference_request_success", model)


def test_mixed(server):
    got = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("repeat", repeat(grpcclient, [7, 8, 9], [150, 0, 0]), request_id="many", enable_empty_final_response=True)
        client.async_stream_infer("identity", identity(grpcclient, 1), request_id="slow", parameters={"delay_ms": 60})
        client.async_stream_infer("identity", identity(grpcclient, 2), request_id="fast")
        client.async_stream_infer("nope", identity(grpcclient, 3), request_id="nope")
        client.async_stream_infer("identity", identity(grpcclient, 4), request_id="fails", parameters={"fail": "as told"})
        client.async_stream_infer("identity", identity(grpcclient, 5), request_id="last")
        answers = []
        for _ in range(9):
            result, error = got.get(timeout=20)
            if error is not None:
                answers.append(("error", error.message()))
                continue
            r = result.get_response()
            out = result.as_numpy("OUT" if r.model_name == "repeat" else "OUTPUT0")
            answers.append((r.id, None if out is None else int(out[0]), r.parameters["triton_final_response"].bool_param))
        client.stop_stream()
    many = [a for a in answers if a[0] == "many"]
    assert many == [("many", 7, False), ("many", 8, False), ("many", 9, False), ("many", None, True)]
    assert [a for a in answers if a[0] != "many"] == [
        ("slow", 1, True), ("fast", 2, True), ("error", "Request for unknown model: 'nope' is not found"), ("error", "as told"), ("last", 5, True)]
    assert answers[0][0] != "many"


@pytest.mark.parametrize("compression,sizes", [(None, (1_000_000, 2_000_000, 10, 6_000_000, 3_000_000)), ("gzip", (10, 2_400_000))])
def test_messages_larger_than_the_window(server, compression, sizes):
    """Messages of a stream that the window of 8 MiB never has room for: alone, and with others behind them."""
    rng = np.random.default_rng(1)
    values = [rng.integers(0, 2**31, n, dtype=np.int32) for n in sizes]
    got = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: got.put((result, error)), compression_algorithm=compression)
        try:
            for ahead in (False, True):
                for i, v in enumerate(values):
                    client.async_stream_infer("identity", tensors(grpcclient, INPUT0=v))
                    if not ahead or i == len(values) - 1:
                        for want in values if ahead else [v]:
                            result, error = got.get(timeout=20)
                            assert error is None and np.array_equal(result.as_numpy("OUTPUT0"), want)
        finally:  # also where the stream stands still
            client.stop_stream(cancel_requests=True)


def test_aio(server):
    async def run():
        async with aioclient.InferenceServerClient(server.grpc) as client:
            async def requests():
                for i in range(50):
                    yield {"model_name": "identity", "inputs": identity(aioclient, i), "request_id": str(i)}
                yield {"model_name": "repeat", "inputs": repeat(aioclient, range(100)), "request_id": "r"}
            seen = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                seen.append((result.get_response().id, int(result.as_numpy("OUT" if result.get_response().id == "r" else "OUTPUT0")[0])))
            return seen
    seen = asyncio.run(run())
    assert [v for i, v in seen if i != "r"] == list(range(50))
    assert [v for i, v in seen if i == "r"] == list(range(100))


def test_client_that_leaves_stops_the_model(server):
    before = success(server, "repeat")
    client = grpcclient.InferenceServerClient(server.grpc)
    got = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    for _ in range(6):  # more than instances: some wait
        client.async_stream_infer("repeat", repeat(grpcclient, [1, 2], [0, 60000]))
    for _ in range(4):
        assert got.get(timeout=20)[1] is None
    client.stop_stream(cancel_requests=True)
    client.close()
    with grpcclient.InferenceServerClient(server.grpc) as again:  # all instances are free again
        answers = queue.Queue()
        again.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(4):
            again.async_stream_infer("repeat", repeat(grpcclient, [5]))
        for _ in range(4):
            assert answers.get(timeout=5)[1] is None
        again.stop_stream()
    harness.wait_for(lambda: success(server, "repeat") == before + 4, 5, "four successes")


def test_worker_killed_ends_its_requests_alone(server):
    got = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("repeat", repeat(grpcclient, [1, 2]), request_id="dies", parameters={"crash_after": 1})
        assert got.get(timeout=20)[0].as_numpy("OUT")[0] == 1
        assert "worker process ended" in got.get(timeout=20)[1].message()
        client.async_stream_infer("repeat", repeat(grpcclient, [3]), request_id="lives")
        assert got.get(timeout=20)[0].as_numpy("OUT")[0] == 3
        client.stop_stream()


def post(server, path, body, **headers):
    connection = http.client.HTTPConnection(server.http, timeout=20)
    connection.request("POST", path, json.dumps(body), {k.replace("_", "-"): v for k, v in headers.items()})
    return connection, connection.getresponse()


@harness.on_time
def test_generate_stream_comes_as_it_is_made(server):
    connection, answer = post(server, "/v2/models/repeat/generate_stream", {"IN": [1, 2], "DELAY": [0, 500], "WAIT": 0},
                              X_Sluice_Event_Ids="true", X_Sluice_Heartbeat="0.1")
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    begin = time.monotonic()
    assert answer.readline() == b"id: 1\n"
    assert json.loads(answer.readline().removeprefix(b"data: "))["OUT"] == 1
    assert time.monotonic() - begin < 0.4
    rest = answer.read()
    assert rest.count(b":\n\n") >= 2 and b'id: 2\ndata: {"IDX":1,"OUT":2,' in rest
    connection.close()


@pytest.mark.parametrize("accept,kind", [("text/event-stream", "text/event-stream; charset=utf-8"), ("application/x-ndjson", "application/x-ndjson")])
def test_decoupled_infer(server, accept, kind):
    body = {"id": "q", "inputs": [{"name": "IN", "shape": [2], "datatype": "INT32", "data": [5, 6]},
                                  {"name": "DELAY", "shape": [2], "datatype": "UINT32", "data": [0, 0]},
                                  {"name": "WAIT", "shape": [1], "datatype": "UINT32", "data": [0]}]}
    connection, answer = post(server, "/v2/models/repeat/infer", body, Accept=accept)
    assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
    documents = [json.loads(line.removeprefix("data: ")) for line in answer.read().decode().splitlines() if line]
    assert [d["outputs"][0]["data"] for d in documents] == [[5], [6]] and documents[0]["id"] == "q"
    connection.close()
    connection, answer = post(server, "/v2/models/repeat/infer", body)
    assert answer.status == 501
    answer.read()
    connection.close()


def test_http_client_that_leaves_stops_the_model(server):
    calls = [post(server, "/v2/models/repeat/generate_stream", {"IN": [1, 2], "DELAY": [0, 60000], "WAIT": 0}) for _ in range(4)]
    for connection, answer in calls:
        assert answer.readline().startswith(b"data: ")
        answer.close()
        connection.close()
    begin = time.monotonic()
    connection, answer = post(server, "/v2/models/repeat/generate", {"IN": [9], "DELAY": [0], "WAIT": 0})
    assert json.loads(answer.read())["OUT"] == 9
    assert time.monotonic() - begin < 3
    connection.close()


@harness.on_time
def test_slow_client_is_ended_and_others_are_served(server):
    """A client that reads nothing: its request ends when 16 MiB wait, and nobody else notices."""
    body = json.dumps({"IN": list(range(400)), "DELAY": [0] * 400, "WAIT": 0, "padding": 100000}).encode()
    host, port = server.http.split(":")
    before = count(server, "nv_inference_request_failure", "repeat")
    with socket.create_connection((host, int(port))) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        harness.wait_for(lambda: count(server, "nv_inference_request_failure", "repeat") == before + 1, 20, "the slow client's end")
        begin = time.monotonic()
        connection, answer = post(server, "/v2/models/repeat/generate", {"IN": [9], "DELAY": [0], "WAIT": 0})
        assert json.loads(answer.read())["OUT"] == 9 and time.monotonic() - begin < 2
        connection.close()


def test_a_long_stream_does_not_fill_memory(start, folder):
    """Twenty thousand answers of one request, where the workers' memory for answers has room for some thousand."""
    server = start(repositories=[folder], flags=["--response-arena-byte-size=1048576"])
    connection, answer = post(server, "/v2/models/repeat/generate_stream", {"IN": [1] * 20000, "DELAY": [0] * 20000, "WAIT": 0})
    assert answer.read().count(b"data: {\"IDX\":") == 20000
    connection.close()
