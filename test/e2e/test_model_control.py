"""Loading, reloading and unloading at run time, with tritonclient and under load."""
import json
import pathlib
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import harness

CONFIG = """backend: "onnxruntime"
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU count: %d }
"""
LOADGEN = harness.ROOT / "bin" / "loadgen"


def adder(n):
    """An ONNX model that adds n."""
    graph = helper.make_graph([helper.make_node("Add", ["IN", "n"], ["OUT"])], "adder",
                              [helper.make_tensor_value_info("IN", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [4])],
                              [numpy_helper.from_array(np.float32(n), "n")])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    m.ir_version = 8
    return m.SerializeToString()


def put(repository, name="m", version=1, add=1, instances=1, more=""):
    """Writes a model as a deployment does: whole, then renamed into its place."""
    folder = pathlib.Path(repository) / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    for path, data in ((folder / str(version) / "model.onnx", adder(add)), (folder / "config.pbtxt", (CONFIG % instances + more).encode())):
        path.with_name("." + path.name).write_bytes(data)
        path.with_name("." + path.name).rename(path)


def clients(server):
    return [(httpclient, httpclient.InferenceServerClient(server.http)), (grpcclient, grpcclient.InferenceServerClient(server.grpc))]


def infer(module, client, name="m", version=""):
    tensor = module.InferInput("IN", [4], "FP32")
    tensor.set_data_from_numpy(np.zeros(4, np.float32))
    return float(client.infer(name, [tensor], model_version=version).as_numpy("OUT")[0])


def index(client):
    answer = client.get_model_repository_index()
    rows = answer if isinstance(answer, list) else [
        {k: v for k, v in (("name", m.name), ("version", m.version), ("state", m.state), ("reason", m.reason)) if v} for m in answer.models]
    return sorted((r["name"], r.get("version", ""), r.get("state", ""), r.get("reason", "")) for r in rows)


def refused(call, *parts):
    with pytest.raises(InferenceServerException) as e:
        call()
    for part in parts:
        assert part in str(e.value), str(e.value)
    return e.value


@pytest.fixture
def explicit(start, tmp_path):
    put(tmp_path)
    return tmp_path, start([tmp_path], ["--model-control-mode=explicit"])


def test_load_and_unload(explicit):
    server = explicit[1]
    first = [("m", "", "", "")]
    for module, client in clients(server):
        assert index(client) == first
        refused(lambda: infer(module, client), "Request for unknown model: 'm'")
        client.load_model("m")
        assert client.is_model_ready("m") and infer(module, client) == 1
        assert index(client) == [("m", "1", "READY", "")]
        refused(lambda: client.load_model("nope"), "failed to load 'nope', failed to poll from model repository")
        client.unload_model("nope")
        client.unload_model("m")
        assert not client.is_model_ready("m") and client.is_server_ready()
        refused(lambda: infer(module, client), "Request for unknown model: 'm' has no available versions")
        first = [("m", "1", "UNAVAILABLE", "unloaded")]
        harness.wait_for(lambda: index(client) == first, 10, "unloaded in the index")


def test_config_and_files(explicit):
    repository, server = explicit
    config = {"backend": "onnxruntime", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
              "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}], "instance_group": [{"kind": "KIND_CPU", "count": 2}]}
    for module, client in clients(server):
        client.load_model("m", config=json.dumps(config))
        got = client.get_model_config("m") if module is httpclient else client.get_model_config("m", as_json=True)["config"]
        assert int(got["instance_group"][0]["count"]) == 2 and infer(module, client) == 1
        client.load_model("m", config=json.dumps(config), files={"file:3/model.onnx": adder(30)})
        assert infer(module, client) == 30 and infer(module, client, version="3") == 30
        refused(lambda: infer(module, client, version="1"), "version 1 is not")
        client.load_model("new", config=json.dumps(dict(config, name="new")), files={"file:1/model.onnx": adder(40)})
        assert infer(module, client, "new") == 40
        for path in ("../x", "//x", "1/../../x", "1", ""):
            refused(lambda: client.load_model("m", config=json.dumps(config), files={"file:1/model.onnx": adder(50), "file:" + path: b"x"}),
                    "failed to load 'm', failed to poll from model repository")
        refused(lambda: client.load_model("m", files={"file:1/model.onnx": adder(50)}), "'config' must be specified for model file override")
        refused(lambda: client.load_model("m", config="{"), "Invalid config override")
        refused(lambda: client.load_model("m", config=json.dumps(dict(config, name="other"))), "failed to load 'm'")
        bad = refused(lambda: client.load_model("m", config=json.dumps(config), files={"file:4/model.onnx": b"no model"}),
                      "load failed for model 'm': version 4 is at UNAVAILABLE state: ")
        assert bad.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        assert infer(module, client) == 30, "a failed load leaves the old one serving"
        client.unload_model("new")
        client.load_model("m")
        assert infer(module, client) == 1, "a load without parameters goes back to the folder"
        harness.wait_for(lambda: not files_left(server), 10, "files of load calls are removed")
    assert server.stop() == 0


def test_what_a_config_may_name(explicit, tmp_path):
    """A load does not read, write or run what lies outside of its folder, nor tell whether it is there."""
    repository, server = explicit
    config = {"backend": "onnxruntime", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
              "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}], "instance_group": [{"kind": "KIND_CPU"}]}
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "there").write_text("no library")
    for _, client in clients(server):
        def load(**more):
            text = json.dumps({**config, **more})
            return refused(lambda: client.load_model("m", config=text), "unable to load model 'm'").message()

        there, gone = (load(model_operations={"op_library_filename": [str(outside / name)]})
                       for name in ("there", "gone"))
        assert "is no file in the model's folder" in there and there.replace("there", "X") == gone.replace("gone", "X")
        for key in ("optimized_model_filepath", "enable_profiling", "collect_node_memory_stats_to_file"):
            value = {"string_value": str(outside / "written")}
            assert "would write a file" in load(parameters={f"session.{key}": value})
        key = "session.model_external_initializers_file_folder_path"
        assert "is no folder" in load(parameters={key: {"string_value": str(outside)}})
        files = {"file:1/model.onnx": adder(2), "file:1/" + "a/" * 5000 + "w": b"x"}
        refused(lambda: client.load_model("m", config=json.dumps(config), files=files), "at most 1024")
        harmless = dict(config, parameters={"session.disable_prepacking": {"string_value": "1"}})
        client.load_model("m", config=json.dumps(harmless))
    assert sorted(p.name for p in outside.iterdir()) == ["there"]
    assert server.stop() == 0


def files_left(server):
    """Folders of load calls that this server has."""
    found = []
    for fd in pathlib.Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            target = fd.readlink()
        except OSError:
            continue
        if target.name == "lock" and target.parent.name.startswith("gateway-"):
            found += [p for p in target.parent.iterdir() if p.name.startswith("model-")]
    return found


def test_what_a_killed_server_left_is_removed(explicit, start):
    repository, server = explicit
    config = json.dumps({"backend": "onnxruntime"})
    client = httpclient.InferenceServerClient(server.http)
    client.load_model("m", config=config, files={"file:1/model.onnx": adder(2)})
    left = files_left(server)
    assert left and left[0].stat().st_mode & 0o077 == 0
    server.kill()
    assert left[0].exists()
    start([repository], ["--model-control-mode=explicit"])
    assert not left[0].exists()


def test_versions_and_instances(explicit):
    repository, server = explicit
    client = httpclient.InferenceServerClient(server.http)
    client.load_model("m")
    loads = server.log().count("successfully loaded 'm'")
    client.load_model("m")
    assert server.log().count("successfully loaded 'm'") == loads, "nothing has changed"
    put(repository, version=2, add=2, more="version_policy { all {} }")
    client.load_model("m")
    assert infer(httpclient, client) == 2 and infer(httpclient, client, version="1") == 1
    put(repository, version=2, add=2, more="version_policy { specific { versions: [ 1 ] } }")
    client.load_model("m")
    assert infer(httpclient, client) == 1
    refused(lambda: infer(httpclient, client, version="2"), "version 2 is not")


def test_instances_change_in_place(explicit):
    repository, server = explicit
    client = httpclient.InferenceServerClient(server.http)
    client.load_model("m")
    (repository / "m/1/model.onnx").chmod(0)  # whoever reads it now fails, but for root
    for count in (3, 1, 2):
        (repository / "m/config.pbtxt").write_text(CONFIG % count)
        client.load_model("m")
        assert client.get_model_config("m")["instance_group"][0]["count"] == count and infer(httpclient, client) == 1
    assert server.log().count("successfully changed the instances of 'm' version 1") == 3
    assert server.log().count("successfully loaded 'm' version 1") == 1


def test_modes_that_refuse(start, tmp_path):
    put(tmp_path)
    for flags in ((), ("--model-control-mode=poll",)):
        server = start([tmp_path], flags)
        for module, client in clients(server):
            for call in (client.load_model, client.unload_model):
                e = refused(lambda: call("m"), "explicit model load / unload is not allowed if polling is enabled")
                assert e.status() in ("503", "StatusCode.UNAVAILABLE")
        server.stop()


def test_startup_models(start, tmp_path):
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    server = start([tmp_path], ["--model-control-mode=explicit", "--load-model=a", "--load-model=c"])
    client = httpclient.InferenceServerClient(server.http)
    assert index(client) == [("a", "1", "READY", ""), ("b", "", "", ""), ("c", "1", "READY", "")]
    server.stop()
    server = start([tmp_path], ["--model-control-mode=explicit", "--load-model=*"])
    assert [r[2] for r in index(httpclient.InferenceServerClient(server.http))] == ["READY"] * 3


def test_poll(start, tmp_path):
    put(tmp_path)
    server = start([tmp_path], ["--model-control-mode=poll", "--repository-poll-secs=1"])
    client = httpclient.InferenceServerClient(server.http)

    def answers():
        try:
            return infer(httpclient, client)
        except InferenceServerException:
            return None

    assert answers() == 1
    put(tmp_path, version=2, add=2)
    put(tmp_path, "late", add=5)
    harness.wait_for(lambda: answers() == 2, 10, "the new version")
    harness.wait_for(lambda: client.is_model_ready("late"), 10, "the new model")
    whole = adder(3)
    (tmp_path / "m/3").mkdir()
    with open(tmp_path / "m/3/model.onnx", "wb") as f:  # a slow upload
        for i in range(6):
            f.write(whole[len(whole) * i // 6:len(whole) * (i + 1) // 6])
            f.flush()
            assert answers() == 2
            time.sleep(0.5)
    harness.wait_for(lambda: answers() == 3, 10, "the version that arrived slowly")
    assert "failed to load" not in server.log(), "half a model was read"
    shutil.rmtree(tmp_path / "late")
    harness.wait_for(lambda: not client.is_model_ready("late"), 10, "unloaded with its folder")
    (tmp_path / "m/config.pbtxt").write_text("nonsense")
    harness.wait_for(lambda: "failed to load model 'm'" in server.log(), 10, "the broken config was noticed")
    assert answers() == 3


def test_namespaces(start, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, "a", add=1)
    put(two, "a", add=2)
    put(two, "b", add=3)
    server = start([one, two], ["--model-namespacing=true", "--model-control-mode=explicit"])
    client = httpclient.InferenceServerClient(server.http)
    assert [r[0] for r in index(client)] == ["a", "a", "b"]
    client.load_model("b")
    assert infer(httpclient, client, "b") == 3
    client.load_model("a")
    refused(lambda: infer(httpclient, client, "a"), "There are 2 identifiers of model 'a' in global map")
    series = [line for line in server.metrics_text().splitlines() if line.startswith("nv_inference_count{") and 'model="a"' in line]
    assert len(series) == 2 and all(sum(f'namespace="{r}"' in line for line in series) == 1 for r in (one, two)), series
    client.unload_model("a")
    assert infer(httpclient, client, "b") == 3


def test_named_config(start, tmp_path):
    put(tmp_path, "a")
    put(tmp_path, "b")
    (tmp_path / "a/configs").mkdir()
    (tmp_path / "a/configs/big.pbtxt").write_text(CONFIG % 2)
    server = start([tmp_path], ["--model-config-name=big"])
    client = httpclient.InferenceServerClient(server.http)
    assert [client.get_model_config(m)["instance_group"][0]["count"] for m in "ab"] == [2, 1]


def drive(server, seconds):
    """The load of one round, over both protocols."""
    return [subprocess.Popen([LOADGEN, "-protocol", p, "-address", a, "-model", "m", "-input", "IN", "-shape", "4", "-concurrency", "8",
                              "-warmup", "0s", "-duration", f"{seconds}s"], stdout=subprocess.PIPE) for p, a in (("http", server.http), ("grpc", server.grpc))]


def test_reload_under_load(explicit):
    """50,000 requests over both protocols while the model is reloaded: none fails, the model is always ready, and what
    comes after a load call has returned is the new version's."""
    if not LOADGEN.exists():
        pytest.skip("bin/loadgen is not there: make test builds it")
    repository, server = explicit
    both = clients(server)
    both[0][1].load_model("m")
    over, dips = threading.Event(), []

    def watch():
        while not over.wait(0.01):
            if server.status("/v2/models/m/ready") != 200 or server.status("/v2/health/ready") != 200:
                dips.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    reloads = requests = 0
    end = time.monotonic() + 60
    try:
        while requests < 50_000 and time.monotonic() < end:
            loads = drive(server, 4)
            while any(p.poll() is None for p in loads):
                reloads += 1
                put(repository, add=reloads, instances=1 + reloads % 2)
                both[reloads % 2][1].load_model("m")
                for module, client in both:
                    assert infer(module, client) == reloads
                time.sleep(0.1)
            results = [json.loads(p.communicate(timeout=30)[0]) for p in loads]
            assert [r["errors"] for r in results] == [0, 0], results
            requests += sum(r["requests"] for r in results)
    finally:
        over.set()
        watcher.join()
    print(f"{requests} requests, {reloads} reloads")
    assert not dips, f"not ready {len(dips)} times"
    assert reloads >= 20 and requests >= 50_000, (reloads, requests)
