"""SageMaker's and Vertex AI's front ends as the platforms call them: plain HTTP requests, their environment, keys, limits, the end."""
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.http as client

import harness

TENSOR = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}).encode()
SM = ["--allow-sagemaker=true", "--sagemaker-address=127.0.0.1", "--sagemaker-port=0"]
VX = ["--allow-vertex-ai=true", "--vertex-ai-address=127.0.0.1", "--vertex-ai-port=0"]
AIP = {"AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict", "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2"}


@pytest.fixture
def environment(monkeypatch):
    return lambda **values: [monkeypatch.setenv(k, v) for k, v in values.items()]


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/identity_int32").symlink_to(harness.TEST_MODELS / "identity_int32")
    return tmp_path / "base"


def call(server, front, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.ports[front], timeout=20)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_multi_model_endpoint(start, environment, tmp_path, base):
    """Load, invoke with binary tensors, list, unload; reloaded many times, nothing stays behind."""
    root = tmp_path / "opt"
    shutil.copytree(harness.TEST_MODELS / "identity_int32", root / "h1/model/identity_int32")
    environment(SAGEMAKER_TRITON_PING_MODE="live")
    server = start([base], [*SM, f"--sagemaker-model-directory={root}", "--model-control-mode=explicit", "--model-namespacing=true", "--allow-http=true"])
    body = json.dumps({"model_name": "h1", "url": f"{root}/h1/model"})
    target = {"X_Amzn_SageMaker_Target_Model": "dir/net.tar.gz"}
    for _ in range(20):
        assert call(server, "sagemaker", "POST", "/models", body, **target)[0] == 200
        assert call(server, "sagemaker", "POST", "/models", body, **target)[0] == 409
        one = client.InferInput("INPUT0", [1, 40000], "INT32")
        one.set_data_from_numpy(np.arange(40000, dtype=np.int32).reshape(1, -1))
        data, length = client.InferenceServerClient.generate_request_body([one], outputs=[client.InferRequestedOutput("OUTPUT0", binary_data=True)])
        kind = "application/vnd.sagemaker-triton.binary+json;json-header-size="
        status, headers, answer = call(server, "sagemaker", "POST", "/models/h1/invoke", data, Content_Type=f"{kind}{length}", **target)
        assert status == 200 and headers["Content-Type"].startswith(kind), answer[:300]
        result = client.InferenceServerClient.parse_response_body(answer, header_length=int(headers["Content-Type"][len(kind):]))
        assert (result.as_numpy("OUTPUT0") == np.arange(40000)).all() and result.get_response()["model_name"] == "dir/net.tar.gz"
        assert call(server, "sagemaker", "DELETE", "/models/h1", **target)[0] == 200
        assert call(server, "sagemaker", "POST", "/models/h1/invoke", data)[0] == 404
    index = json.loads(server.ask("/v2/repository/index", b"")[2])
    assert [m["name"] for m in index] == ["identity_int32"], index


def test_needs_explicit_control(start, tmp_path, base):
    root = tmp_path / "opt"
    shutil.copytree(harness.TEST_MODELS / "identity_int32", root / "h1/model/identity_int32")
    server = start([base], [*SM, f"--sagemaker-model-directory={root}"])
    status, _, body = call(server, "sagemaker", "POST", "/models", json.dumps({"model_name": "h1", "url": f"{root}/h1/model"}))
    assert status == 400 and b"repository registration is not allowed if model control mode is not EXPLICIT" in body


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_restricted(start, environment, tmp_path, base, transport):
    """The original's restricted APIs, the access log and the metrics hold here as on the protocol's own port."""
    environment(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="identity_int32", **AIP)
    server = start([base], [*SM, *VX, "--http-restricted-api=model-repository:admin-key=secret", f"--http-transport={transport}", "--model-control-mode=explicit",
                            "--load-model=identity_int32", f"--access-log={tmp_path}/access"])
    assert call(server, "sagemaker", "POST", "/invocations", TENSOR)[0] == 200
    for method, path in (("GET", "/models"), ("POST", "/models"), ("GET", "/models/x"), ("DELETE", "/models/x")):
        status, headers, body = call(server, "sagemaker", method, path, b"{}" if method == "POST" else None)
        assert status == 403 and b"This API is restricted, expecting header 'admin-key'" in body, (method, path)
        assert headers["X-Sluice-Reason"] == "restricted"
    assert call(server, "sagemaker", "GET", "/models", admin_key="secret")[0] == 200
    route = AIP["AIP_PREDICT_ROUTE"]
    assert call(server, "vertex_ai", "POST", route, TENSOR)[0] == 200
    assert call(server, "vertex_ai", "POST", route, b"", X_Vertex_Ai_Triton_Redirect="v2/repository/index")[0] == 403
    assert call(server, "vertex_ai", "POST", route, b"", X_Vertex_Ai_Triton_Redirect="v2/repository/index", admin_key="secret")[0] == 200
    assert call(server, "vertex_ai", "POST", route, b"", X_Vertex_Ai_Triton_Redirect="v2/repository/models/identity_int32/unload", admin_key="secret")[0] == 403
    status, headers, body = call(server, "vertex_ai", "POST", route, b"", X_Vertex_Ai_Triton_Redirect="metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain") and b"nv_inference_request_success{" in body
    assert call(server, "vertex_ai", "GET", AIP["AIP_HEALTH_ROUTE"])[0] == 200
    assert call(server, "vertex_ai", "POST", route.replace(":", "%3A"), TENSOR)[0] == 200
    assert server.stop() == 0
    log = (tmp_path / "access").read_text()
    for path in ("/invocations", "/models", route):
        assert path in log
    assert "identity_int32" in log


def test_keys_and_limits(start, environment, tmp_path, base):
    """Who calls counts here too: the policy decides on what a call stands for, limits count it."""
    environment(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="identity_int32", **AIP)
    new = subprocess.run([harness.BINARY, "keys", "new", "app"], check=True, capture_output=True, text=True)
    line, key = new.stdout.strip(), next(w for w in new.stderr.split() if w.startswith("sluice_"))
    (tmp_path / "keys").write_text(line + "\n")
    (tmp_path / "policy").write_text("rules:\n- {principals: app, actions: infer, models: identity_int32}\n")
    (tmp_path / "limits").write_text("rules:\n- {name: few, each: principal, requests: {rate: 2/h, burst: 2}}\n")
    server = start([base], [*SM, *VX, f"--api-keys={tmp_path}/keys", f"--policy={tmp_path}/policy", f"--limits-file={tmp_path}/limits"])
    assert call(server, "sagemaker", "POST", "/invocations", TENSOR)[0] == 401
    assert call(server, "sagemaker", "GET", "/ping")[0] == 200
    assert call(server, "sagemaker", "POST", "/invocations", TENSOR, X_Api_Key=key)[0] == 200
    assert call(server, "sagemaker", "POST", "/models", b"{}", X_Api_Key=key)[0] == 403
    route = AIP["AIP_PREDICT_ROUTE"]
    assert call(server, "vertex_ai", "POST", route, b"", X_Api_Key=key, X_Vertex_Ai_Triton_Redirect="v2/models/identity_int32/config")[0] == 403
    assert call(server, "vertex_ai", "POST", route, b"", X_Api_Key=key, X_Vertex_Ai_Triton_Redirect="metrics")[0] == 403
    assert call(server, "vertex_ai", "POST", route, TENSOR, X_Api_Key=key)[0] == 200
    status, headers, _ = call(server, "sagemaker", "POST", "/invocations", TENSOR, X_Api_Key=key)
    assert status == 429 and headers["X-Sluice-Reason"] == "rate_limited"


def test_names_are_not_squatted(start, tmp_path, base):
    """A caller who may control one model can't load it under another's name, nor take away what was loaded there."""
    root, keys, rules = tmp_path / "opt", {}, []
    for archive in ("h1", "h2", "h3"):
        shutil.copytree(harness.TEST_MODELS / "identity_int32", root / archive / "model/identity_int32")
    (root / "h3/model/victim").mkdir()
    config = 'platform: "ensemble" ensemble_scheduling { step [ { model_name: "victim" model_version: -1 } ] }'
    (root / "h3/model/identity_int32/config.pbtxt").write_text(config)
    for name, rights in {"victim": "victim", "squatter": "mine", "reader": "victim"}.items():
        new = subprocess.run([harness.BINARY, "keys", "new", name], check=True, capture_output=True, text=True)
        with open(tmp_path / "keys", "a") as file:
            file.write(new.stdout)
        keys[name] = {"X_Api_Key": next(w for w in new.stderr.split() if w.startswith("sluice_"))}
        actions = "infer" if name == "reader" else "[control, infer, index]"
        rules.append(f"- {{principals: {name}, actions: {actions}, models: {rights}}}\n")
    (tmp_path / "policy").write_text("rules:\n" + "".join(rules))
    server = start([base], [*SM, f"--sagemaker-model-directory={root}", "--model-control-mode=explicit",
                            f"--api-keys={tmp_path}/keys", f"--policy={tmp_path}/policy"])

    def load(who, name, target, archive):
        body = json.dumps({"model_name": name, "url": f"{root}/{archive}/model"})
        headers = {"X_Amzn_SageMaker_Target_Model": target} if target else {}
        return call(server, "sagemaker", "POST", "/models", body, **keys[who], **headers)[0]

    assert load("squatter", "victim", "mine", "h1") == 403
    assert load("squatter", "mine", "victim", "h1") == 403
    assert load("squatter", "mine", None, "h1") == 403  # the body comes after the decision on all models
    assert load("squatter", "mine", "mine", "h3") == 403  # brings a step that is called as another's model
    assert load("victim", "victim", "victim", "h1") == 200
    assert load("squatter", "mine", "mine", "h2") == 200
    assert call(server, "sagemaker", "POST", "/models/victim/invoke", TENSOR, **keys["reader"])[0] == 200
    assert call(server, "sagemaker", "POST", "/models/mine/invoke", TENSOR, **keys["reader"])[0] == 403
    aimed = {"X_Amzn_SageMaker_Target_Model": "victim"}
    assert call(server, "sagemaker", "POST", "/models/mine/invoke", TENSOR, **keys["reader"], **aimed)[0] == 404
    assert call(server, "sagemaker", "DELETE", "/models/victim", **keys["squatter"])[0] == 403
    assert json.loads(call(server, "sagemaker", "GET", "/models", **keys["squatter"])[2])["models"] == [
        {"modelName": "mine", "modelUrl": f"{root}/h2/model"}]
    assert call(server, "sagemaker", "DELETE", "/models/victim", **keys["victim"])[0] == 200
    assert load("squatter", "victim", "mine", "h1") == 403


def refused(env, *flags):
    """The end of a server that does not start."""
    done = subprocess.run([harness.BINARY, "serve", *flags, "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                           "--metrics-address=127.0.0.1"], env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr


def test_what_does_not_start(base):
    """The original's errors at the start."""
    flags = [f"--model-repository={base}", *VX]
    assert "API_PREDICT_ROUTE is not defined for Vertex AI endpoint" in refused({}, *flags)
    assert "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint" in refused({"AIP_PREDICT_ROUTE": "/p"}, *flags)
    assert "Expect the default model 'nope' is loaded" in refused(AIP, *flags, "--vertex-ai-default-model=nope")
    (base / "identity_int8").symlink_to(harness.TEST_MODELS / "identity_int8")
    assert "contains only a single model if default model is not specified" in refused(AIP, *flags)
    port = harness.free_port()
    assert f"SageMaker requests and Vertex AI requests at the same address and port 127.0.0.1:{port}" in refused(
        AIP, f"--model-repository={base}", *SM[:2], f"--sagemaker-port={port}", *VX[:2], f"--vertex-ai-port={port}")


def test_vertex_environment(environment, tmp_path, base):
    """AIP_MODE, AIP_STORAGE_URI and AIP_HTTP_PORT are enough; HTTP and gRPC are off then."""
    port = harness.free_port()
    environment(AIP_MODE="PREDICTION", AIP_STORAGE_URI=str(base), AIP_HTTP_PORT=str(port), **AIP)
    server = harness.Server([], ["--vertex-ai-address=127.0.0.1"], ready=False)
    try:
        assert server.http is None and server.grpc is None and server.ports["vertex_ai"] == port
        assert call(server, "vertex_ai", "GET", AIP["AIP_HEALTH_ROUTE"])[0] == 200
        assert call(server, "vertex_ai", "POST", AIP["AIP_PREDICT_ROUTE"], TENSOR)[0] == 200
        assert server.stop() == 0, server.log()[-2000:]
    finally:
        server.kill()


def test_generate(start, environment, base):
    """SAGEMAKER_TRITON_INFERENCE_TYPE makes /invocations a generate call."""
    environment(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="identity_int32", SAGEMAKER_TRITON_INFERENCE_TYPE="generate_stream")
    server = start([base], SM)
    status, headers, body = call(server, "sagemaker", "POST", "/invocations", b'{"INPUT0": [5]}')
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream") and body.startswith(b"data: "), body


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_drain(start, environment, tmp_path, transport):
    """A call in flight is answered when the server ends; a new one is not taken."""
    (tmp_path / "slow").symlink_to(harness.TEST_MODELS / "slow")
    environment(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="slow")
    server = start([tmp_path], [*SM, f"--http-transport={transport}", "--exit-grace-ms=0"])
    before = call(server, "sagemaker", "GET", "/ping")[0]
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]})
    got = []
    callers = [threading.Thread(target=lambda: got.append(call(server, "sagemaker", "POST", "/invocations", body)[0])) for _ in range(8)]
    for caller in callers:  # one after the other at the instance: 1.6 s
        caller.start()
    harness.wait_for(lambda: len(got) + in_flight(server) >= 8, 10, "all calls taken")  # answered, or in flight then
    status = server.stop()
    for caller in callers:
        caller.join(20)
    assert before == 200 and status == 0 and got == [200] * 8, (before, status, got)
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.ports["sagemaker"]), 1):
        pass


def in_flight(server):
    return int(next(line for line in metrics(server).splitlines() if line.startswith(b'sluice_requests_in_flight{protocol="http"}')).rsplit(b" ", 1)[1])


def metrics(server):
    connection = http.client.HTTPConnection(server.metrics, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    finally:
        connection.close()
