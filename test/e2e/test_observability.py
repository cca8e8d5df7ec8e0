"""What an SRE opens first: the access log, and a request's own times in its answer. Metrics are in test_dashboards.py."""
import json
import os
import signal
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = TRACEPARENT.split("-")[1]
SIMPLE = json.dumps({"id": "from the body", "inputs": [
    {"name": n, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))} for n in ("INPUT0", "INPUT1")]}).encode()


def lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def logged(file, count, **members):
    """The lines that have these members, once there are as many."""
    def found():
        some = [x for x in lines(file) if all(x.get(k) == v for k, v in members.items())] if os.path.exists(file) else []
        return some if len(some) >= count else None
    return harness.wait_for(found, 10, f"{count} lines with {members}")


def inputs(module, name="INPUT0", shape=(1, 16), dtype="INT32"):
    t = module.InferInput(name, list(shape), dtype)
    t.set_data_from_numpy(np.zeros(shape, {"INT32": np.int32, "FP32": np.float32}[dtype]))
    return t


def simple(module):
    return [inputs(module, "INPUT0"), inputs(module, "INPUT1")]


@pytest.fixture(scope="module")
def observed(built, tmp_path_factory):
    """A server with an access log that knows a caller by a key, and traces for a collector that nobody runs."""
    folder = tmp_path_factory.mktemp("access")
    path = folder / "access.log"
    key = subprocess.run([harness.BINARY, "keys", "new", "alice"], check=True, capture_output=True, text=True)
    (folder / "keys.txt").write_text(key.stdout)
    s = harness.Server(flags=[f"--access-log={path}", f"--api-keys={folder}/keys.txt", "--log-verbose=1", "--trace-config=mode=opentelemetry",
                              "--trace-config=opentelemetry,url=http://127.0.0.1:1/v1/traces"])
    s.key = key.stderr.strip().split()[-1]
    s.access = path
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


def test_line_of_an_inference(observed):
    status, headers, _ = observed.ask("/v2/models/simple/infer", SIMPLE, {"x-request-id": "r-17", "traceparent": TRACEPARENT})
    assert status == 200
    line, = logged(observed.access, 1, request_id="r-17")
    assert line["outcome"] == "ok" and line["protocol"] == "http" and line["method"] == "POST" and line["status"] == 200
    assert line["path"] == "/v2/models/simple/infer" and line["model"] == "simple" and line["version"] == "1"
    assert line["batch"] == 1 and line["rows"] == 1 and line["received"] == len(SIMPLE) and line["sent"] == int(headers["content-length"])
    assert line["remote"].startswith("127.0.0.1:")
    assert 0 <= line["queue_us"] and 0 < line["compute_us"] <= line["total_us"]


def test_principal_and_trace_of_a_call_and_of_its_failure(observed):
    who = {"x-api-key": observed.key, "traceparent": TRACEPARENT, "x-request-id": "t-1"}
    assert observed.ask("/v2/models/simple/infer", SIMPLE, who)[0] == 200
    line, = logged(observed.access, 1, request_id="t-1")
    assert (line["principal"], line["auth"], line["trace_id"], line["sampled"]) == ("alice", "api-key", TRACE, True)
    unsampled = TRACEPARENT.replace("4736-", "4737-")[:-2] + "00"
    assert observed.ask("/v2/models/simple/infer", b"{}", {**who, "traceparent": unsampled, "x-request-id": "t-2"})[0] == 500
    line, = logged(observed.access, 1, request_id="t-2")
    assert line["outcome"] == "invalid" and line["trace_id"] == TRACE[:-1] + "7" and "sampled" not in line
    failed, = [x for x in observed.log().splitlines() if "request failed" in x and TRACE[:-1] + "7" in x]
    assert "principal=alice" in failed
    assert observed.key not in observed.access.read_text() + observed.log()


def test_line_of_a_grpc_inference_and_of_its_failures(observed):
    with grpcclient.InferenceServerClient(observed.grpc) as client:
        client.infer("simple", simple(grpcclient), request_id="g-1")
        with pytest.raises(InferenceServerException):
            client.infer("none\n\"such", simple(grpcclient), request_id="g-2")
        client.get_server_metadata()
    line, = logged(observed.access, 1, request_id="g-1")
    assert line["protocol"] == "grpc" and line["rpc"] == "ModelInfer" and line["grpc_code"] == 0 and line["batch"] == 1
    line, = logged(observed.access, 1, request_id="g-2")
    assert line["outcome"] == "invalid" and line["grpc_code"] in (3, 5) and line["model"] == "none\n\"such" and "none" in line["error"]
    logged(observed.access, 1, rpc="ServerMetadata", outcome="ok")


def test_what_has_no_route_and_what_is_healthy(observed):
    assert observed.status("/v2/health/live") == 200
    assert observed.status("/nowhere%0a%22") == 404
    line, = logged(observed.access, 1, path="/nowhere%0a%22")
    assert line["outcome"] == "invalid" and line["status"] == 404
    assert not [x for x in lines(observed.access) if x.get("path") == "/v2/health/live"], "a health check that went well is logged"


def test_file_is_opened_again_at_sighup(observed):
    old = observed.access.with_suffix(".old")
    observed.ask("/v2/models/simple/infer", SIMPLE, {"x-request-id": "before"})
    logged(observed.access, 1, request_id="before")
    observed.access.rename(old)
    observed.process.send_signal(signal.SIGHUP)
    harness.wait_for(observed.access.exists, 5, "a new file")
    observed.ask("/v2/models/simple/infer", SIMPLE, {"x-request-id": "after"})
    logged(observed.access, 1, request_id="after")
    assert "after" not in old.read_text()
    old.write_text(old.read_text())


def timings(value):
    """Server-Timing as a dict of name to its parameters."""
    return {part.split(";")[0].strip(): dict(p.split("=") for p in part.split(";")[1:]) for part in value.split(",")}


def test_times_over_http_on_request(observed):
    with httpclient.InferenceServerClient(observed.http) as client:
        quiet = client.infer("simple", simple(httpclient))
        asked = client.infer("simple", simple(httpclient), headers={"X-Sluice-Timing": "1"}, parameters={"sluice_timings": True})
    assert "parameters" not in quiet.get_response()
    got = asked.get_response()["parameters"]
    assert got["sluice_batch_size"] == 1 and got["sluice_compute_us"] > 0 and got["sluice_queue_us"] >= 0
    assert got["sluice_total_us"] >= got["sluice_compute_us"] >= got["sluice_infer_us"]
    _, headers, _ = observed.ask("/v2/models/simple/infer", SIMPLE)
    assert "server-timing" not in headers
    _, headers, _ = observed.ask("/v2/models/simple/infer", SIMPLE, {"x-sluice-timing": "1"})
    t = timings(headers["server-timing"])
    assert {"queue", "compute", "input", "infer", "output", "total"} <= set(t)
    assert float(t["total"]["dur"]) >= float(t["compute"]["dur"]) > 0
    status, headers, _ = observed.ask("/v2/models/simple/infer", b"{", {"x-sluice-timing": "1"})
    assert status >= 400 and set(timings(headers["server-timing"])) == {"total"}


def test_times_over_grpc_on_request(observed):
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    message = service_pb2.ModelInferRequest(model_name="simple")
    for t in simple(grpcclient):
        message.inputs.append(t._get_tensor())
        message.raw_input_contents.append(np.zeros((1, 16), np.int32).tobytes())
    message.parameters["sluice_timings"].bool_param = True
    with grpc.insecure_channel(observed.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response, call = stub.ModelInfer.with_call(message, metadata=[("x-sluice-timing", "1")])
        trailers = dict(call.trailing_metadata())
        assert {"queue", "compute", "total"} <= set(timings(trailers["server-timing"]))
        assert response.parameters["sluice_compute_us"].int64_param > 0
        _, call = stub.ModelInfer.with_call(message)
        assert "server-timing" not in dict(call.trailing_metadata())
        message.parameters["sluice_timings"].string_param = "yes"
        with pytest.raises(grpc.RpcError) as e:
            stub.ModelInfer(message)
        assert e.value.details().endswith("invalid value type for 'sluice_timings' parameter, expected bool_param.")


def test_never_and_cache(start, tmp_path):
    """A server that tells nobody; and one that tells what the cache did, for one answer whether it was asked for times or not."""
    shy = start(repositories=[harness.DEMO], flags=["--response-timings=never"])
    _, headers, body = shy.ask("/v2/models/simple/infer", SIMPLE.replace(b'{"id"', b'{"parameters":{"sluice_timings":true},"id"'), {"x-sluice-timing": "1"})
    assert "server-timing" not in headers and b"sluice_" not in body
    shy.stop()
    model = tmp_path / "kept" / "1"
    model.mkdir(parents=True)
    (tmp_path / "kept" / "config.pbtxt").write_text("""backend: "identity" max_batch_size: 4 response_cache { enable: true }
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }""")
    open_ = start(repositories=[tmp_path], flags=["--response-timings=always", "--cache-config=local,size=1048576"])
    ask = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    _, headers, _ = open_.ask("/v2/models/kept/infer", json.dumps(ask).encode())
    assert timings(headers["server-timing"])["cache"]["desc"] == "miss"
    ask["parameters"] = {"sluice_timings": True}
    _, headers, body = open_.ask("/v2/models/kept/infer", json.dumps(ask).encode())
    assert timings(headers["server-timing"])["cache"]["desc"] == "hit" and "queue" not in timings(headers["server-timing"])
    assert json.loads(body)["parameters"]["sluice_cache"] == "hit"
    del ask["parameters"]
    _, _, body = open_.ask("/v2/models/kept/infer", json.dumps(ask).encode())
    assert "parameters" not in json.loads(body), "the times of one caller were kept for others"


def test_times_of_an_ensemble(start, tmp_path):
    """The sum of its steps, in the answer's parameters as in its field."""
    tensors = 'input {{ name: "{}" data_type: TYPE_INT32 dims: -1 }} output {{ name: "{}" data_type: TYPE_INT32 dims: -1 }}\n'
    step = "backend: \"identity\" max_batch_size: 4\n" + tensors.format("INPUT0", "OUTPUT0") + 'parameters { key: "execute_delay_ms" value { string_value: "20" } }'
    steps = "".join(f'step {{ model_name: "{m}" model_version: -1 input_map {{ key: "INPUT0" value: "{i}" }} output_map {{ key: "OUTPUT0" value: "{o}" }} }}'
                    for m, i, o in (("first", "A", "B"), ("second", "B", "C")))
    both = "platform: \"ensemble\" max_batch_size: 4\n" + tensors.format("A", "C") + "ensemble_scheduling { %s }" % steps
    for name, config in (("first", step), ("second", step), ("both", both)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    s = start(repositories=[tmp_path])
    ask = {"parameters": {"sluice_timings": True}, "inputs": [{"name": "A", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    status, headers, body = s.ask("/v2/models/both/infer", json.dumps(ask).encode(), {"x-sluice-timing": "1"})
    assert status == 200
    t, p = timings(headers["server-timing"]), json.loads(body)["parameters"]
    assert p["sluice_total_us"] >= p["sluice_compute_us"] >= 40000
    assert abs(float(t["compute"]["dur"]) * 1000 - p["sluice_compute_us"]) < 2
