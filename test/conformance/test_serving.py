"""What surrounds the requests: queues, deadlines, broken models, the example, the measuring tool, health and reflection."""
import json
import os
import struct
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import classify_file
import harness

ONE = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()


def at_once(n, call):
    """The results of n calls made at the same time."""
    results = [None] * n

    def run(i):
        results[i] = call(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return results


def counts(server, model):
    s = server.get(f"/v2/models/{model}/stats")["model_stats"][0]
    return s["execution_count"], s["inference_stats"]["fail"]["count"]


def test_queue_full(server):
    answers = at_once(8, lambda i: server.ask("/v2/models/queue2/infer", ONE))
    by_status = {s: [a for a in answers if a[0] == s] for s in {a[0] for a in answers}}
    assert set(by_status) == {200, 503} and 2 <= len(by_status[200]) <= 4, {s: len(v) for s, v in by_status.items()}
    for _, headers, body in by_status[503]:
        assert json.loads(body)["error"] == "[request id: <id_unknown>] Exceeds maximum queue size"
        assert headers["Retry-After"]
    assert "queue_full" in server.metrics_text()


@harness.on_time
def test_queue_timeout(server):
    """A default of 50 ms, on a model that takes 300: refused in time, not when an instance is free."""
    def call(i):
        begin = time.monotonic()
        status, _, body = server.ask("/v2/models/expires/infer", ONE)
        return status, body, time.monotonic() - begin
    answers = at_once(4, call)
    late = [a for a in answers if a[0] == 503]
    assert len(late) == 3 and len([a for a in answers if a[0] == 200]) == 1, answers
    for _, body, seconds in late:
        assert json.loads(body)["error"].endswith("Request timeout expired") and seconds < 0.25, (body, seconds)


def test_grpc_deadline(server):
    """Requests whose deadline passed in the queue are not executed."""
    before, _ = counts(server, "slow")
    with grpcclient.InferenceServerClient(server.grpc) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))

        def call(i):
            try:
                c.infer("slow", [tensor], client_timeout=0.1)
                return "OK"
            except InferenceServerException as e:
                return e.status()
        # grpc-go resets the stream when the server's timer fires, which may run ahead of the client's by its rounding: the
        # client then says CANCELLED
        assert set(at_once(6, call)) <= {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"}
    harness.wait_for(lambda: server.ask("/v2/models/slow/infer", ONE)[0] == 200, 10, "slow answers again")
    after, _ = counts(server, "slow")
    assert after - before <= 3, f"{after - before} executions, one of them wanted"


def test_http_close_cancels(server):
    """A caller that hangs up takes its requests out of the queue."""
    import http.client
    before, _ = counts(server, "slow")
    connections = []
    for _ in range(6):
        c = http.client.HTTPConnection(server.http, timeout=20)
        c.request("POST", "/v2/models/slow/infer", ONE)
        connections.append(c)
    for c in connections:
        c.close()
    assert server.ask("/v2/models/slow/infer", ONE)[0] == 200
    after, _ = counts(server, "slow")
    assert after - before <= 3, f"{after - before} executions of 7 requests, 6 of them cancelled"


def test_broken_models_do_not_stop_the_others(start):
    s = start(repositories=[harness.BROKEN], flags=["--exit-on-error=false", "--strict-readiness=false"])
    rows = {m["name"]: m for m in json.loads(s.ask("/v2/repository/index", b"")[2])}
    assert rows["good"]["state"] == "READY"
    for name, word in {"bad_field": "no_such_field", "bad_model": "", "no_file": "", "no_backend": "no_such_backend"}.items():
        assert rows[name]["state"] == "UNAVAILABLE" and rows[name]["reason"] and word in rows[name]["reason"], rows[name]
    data = [1, 2, 3, 4]
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "INT32", "data": data}]}).encode()
    status, _, answer = s.ask("/v2/models/good/infer", body)
    assert status == 200 and json.loads(answer)["outputs"][0]["data"] == data
    assert s.status("/v2/models/bad_model/ready") == 400


def test_check_command(built):
    run = subprocess.run([harness.BINARY, "check", harness.BROKEN], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert 'bad_field/config.pbtxt:3:1: unknown field "no_such_field"' in run.stdout, run.stdout + run.stderr
    for name in ("bad_model", "good", "no_backend", "no_file"):
        assert name in run.stdout
    run = subprocess.run([harness.BINARY, "check", harness.DEMO], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and 'input "INPUT0" TYPE_FP32 [512]' in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("layout,hint", [
    ({"m/config.pbxt": "", "m/1/model.onnx": "x"}, "config.pbxt"),
    ({"m/config.pbtxt": 'backend: "onnxruntime"\n', "m/1/net.onnx": "x"}, "net.onnx"),
    ({"m/config.pbtxt": 'backend: "identity"\n', "m/v1/model.onnx": "x"}, "v1")], ids=["config", "file", "version"])
def test_check_command_near_misses(built, tmp_path, layout, hint):
    for path, text in layout.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    run = subprocess.run([harness.BINARY, "check", tmp_path], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and hint in run.stdout, run.stdout + run.stderr


def test_unknown_flag_is_explained(built):
    run = subprocess.run([harness.BINARY, "serve", "--model-repositry=x"], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "--model-repository" in run.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_classify_file_equals_the_package(server, tmp_path, protocol):
    """The labels and the scores of magika's own package, for real files of this tree and for short ones."""
    import magika
    paths = [harness.ROOT / p for p in ("Makefile", "go.mod", "scripts/make_models.py", "test/arch/check.go", "scripts/setup.sh",
                                        "proto/inference/grpc_service.proto", "bin/sluice", "README.md")]
    paths.append(harness.DEMO / "mlp" / "1" / "model.onnx")
    for name, data in {"empty": b"", "short": b"abc", "short.bin": b"\xff\xfe\x00", "blank": b" \n" * 5000,
                       "page.html": b"\n\n<html><body><p>x</p></body></html>\n  "}.items():
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
    oracle = magika.Magika(prediction_mode=magika.PredictionMode.BEST_GUESS)
    answers = classify_file.classify([str(p) for p in paths], getattr(server, protocol), protocol == "grpc")
    for path, labels in answers:
        want = oracle.identify_path(path).prediction
        best, score = labels[0]
        dl = want.dl.label if str(want.dl.label) != "undefined" else want.output.label
        assert best == str(dl), f"{path}: {labels}, magika says {dl}"
        assert score == pytest.approx(want.score, abs=2e-5), path


def test_classify_file_command(server):
    run = subprocess.run([sys.executable, harness.ROOT / "examples/classify_file.py", "Makefile", "--url", server.http],
                         capture_output=True, text=True, timeout=60, cwd=harness.ROOT)
    name, label, score = run.stdout.split()[:3]
    assert run.returncode == 0 and (name, label) == ("Makefile", "makefile") and float(score) > 0.9, run.stdout + run.stderr


@pytest.mark.parametrize("arguments, error", [
    (["Makefile", "--url", "127.0.0.1:1"], "127.0.0.1:1: "), (["Makefile", "--grpc", "--url", "127.0.0.1:1"], "127.0.0.1:1: "),
    (["Makefile", "docs", "nothing"], "not a file: docs, nothing")])
def test_classify_file_tells_errors_in_a_line(arguments, error):
    run = subprocess.run([sys.executable, harness.ROOT / "examples/classify_file.py", *arguments],
                         capture_output=True, text=True, timeout=60, cwd=harness.ROOT)
    assert run.returncode == 1 and run.stderr.startswith(error) and run.stderr.count("\n") == 1, run.stdout + run.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer(server, protocol):
    if not harness.ANALYZER.exists():
        pytest.skip("perf_analyzer is not there: scripts/peer.sh analyzer")
    run = subprocess.run([harness.ROOT / "scripts/peer.sh", "pa", "-m", "mlp", "-i", protocol, "-u", getattr(server, protocol), "-b", "1",
                          "--concurrency-range", "4:4", "-p", "700", "-r", "3", "-s", "999"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "infer/sec" in run.stdout, run.stdout[-2000:] + run.stderr[-2000:]
    assert "Failed" not in run.stdout, run.stdout[-2000:]


def test_grpc_health_check_and_watch(server):
    """grpc.health.v1, by its wire format: field 1 of the answer, SERVING = 1."""
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=10) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=10)
        assert next(iter(watch)) == b"\x08\x01"
        watch.cancel()


def test_grpc_reflection(server):
    """ServerReflectionInfo answers list_services with the inference service."""
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        answer = next(iter(ask(iter([b"\x3a\x00"]), timeout=10)))
        assert b"inference.GRPCInferenceService" in answer and b"grpc.health.v1.Health" in answer


def test_static_gateway(built):
    """The gateway's binary stands alone."""
    run = subprocess.run(["ldd", harness.BINARY], capture_output=True, text=True)
    assert "not a dynamic executable" in run.stdout + run.stderr


@pytest.mark.skipif(not os.access("/dev/cpu_dma_latency", os.R_OK | os.W_OK), reason="/dev/cpu_dma_latency is not there to be written")
def test_cores_wake_soon(start, tmp_path):
    """--cpu-wake-latency-us holds while the server runs, and no longer."""
    def asked():
        with open("/dev/cpu_dma_latency", "rb", buffering=0) as f:
            return struct.unpack("=i", f.read(4))[0]

    before = asked()
    server = start(repositories=[tmp_path], flags=["--cpu-wake-latency-us=7"])
    assert asked() == min(before, 7)
    server.stop()
    assert asked() == before
