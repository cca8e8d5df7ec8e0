"""Triton's own backends as they are: a probing library that the test compiles, and Triton's Python backend where its package lies
in .cache/peer (scripts/peer.sh)."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.http as httpclient

import harness

ROOT = pathlib.Path(__file__).parent.parent.parent
HOST = ROOT / "workers" / "backend" / "tritonhost"
LIBRARY = ROOT / "bin" / "triton" / "libtritonserver.so"
PEER = ROOT / ".cache" / "peer"
TENSORS = '''
input { name: "IN" data_type: TYPE_INT32 dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
'''


@pytest.fixture(scope="session")
def backends(tmp_path_factory):
    """A folder with the probing backend, by two names."""
    folder = tmp_path_factory.mktemp("backends")
    build = folder / "build"
    build.mkdir()
    subprocess.run(["c++", "-fPIC", "-c", "-o", build / "throw.o", HOST / "testdata" / "throw.cc"], check=True)
    subprocess.run(["cc", "-std=c11", "-fPIC", "-shared", "-pthread", "-DPROBE_THROWS", f"-I{HOST}/library", "-o", build / "probe.so",
                    HOST / "testdata" / "probe.c", build / "throw.o", LIBRARY, "-lstdc++"], check=True)
    for name in ("probe", "other"):
        (folder / name).mkdir()
        shutil.copy(build / "probe.so", folder / name / f"libtriton_{name}.so")
    return folder


def lay(root, name, mode, backend="probe", batch=8, more="", **parameters):
    """A model of the probing backend."""
    (root / name / "1").mkdir(parents=True)
    parameters["mode"] = mode
    text = f'backend: "{backend}"\nmax_batch_size: {batch}\n' + TENSORS + more
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    (root / name / "config.pbtxt").write_text(text)


def infer(server, model, values, timeout=60):
    x = np.array([values], np.int32)
    i = httpclient.InferInput("IN", x.shape, "INT32")
    i.set_data_from_numpy(x)
    with httpclient.InferenceServerClient(server.http, network_timeout=timeout, connection_timeout=timeout) as c:
        return c.infer(model, [i]).as_numpy("OUT").tolist()


def reasons(server):
    return {e["name"]: e.get("reason", "") for e in json.loads(server.ask("/v2/repository/index", b"{}")[2])}


def test_what_a_backend_reads(start, tmp_path, backends):
    """Config of backend and model, artifacts, instance and host policy are, byte for byte, what Triton 2.51 gave the same library (testdata/triton.txt)."""
    models = tmp_path / "models"
    written = tmp_path / "written"
    lay(models, "plain", "", file=written)
    config = models / "plain" / "config.pbtxt"
    config.write_text(config.read_text().replace('parameters { key: "mode" value { string_value: "" } }\n', ""))
    server = start(repositories=[models], flags=[f"--backend-directory={backends}", "--backend-config=probe,zeta=1", "--backend-config=probe,alpha=x",
                                                 "--backend-config=other,n=2", "--backend-config=glob=7"])
    assert infer(server, "plain", [1, 2]) == [[1, 2]]
    lines = written.read_text().replace(str(written), "<file>").replace(str(backends), "<backends>").splitlines()
    want = (HOST / "testdata" / "triton.txt").read_text().splitlines()
    # It is asked twice here, for its config and for service, and once by Triton.
    assert lines[-len(want):] == want


def test_deaths(start, tmp_path, backends):
    """A library that aborts, throws, crashes or writes past an output ends its process alone: the error names that, and the log the library,
    the function and the model. Models of another backend, and of the library in another process, are served throughout."""
    models = tmp_path / "models"
    modes = {"abort": "aborted in TRITONBACKEND_ModelInstanceExecute", "throw": "aborted in TRITONBACKEND_ModelInstanceExecute",
             "segv": "accessed memory that is not there (SIGSEGV) in TRITONBACKEND_ModelInstanceExecute", "overrun": "wrote past the end of output 'OUT'"}
    for mode in modes:
        lay(models, mode, mode)
    lay(models, "good", "")
    lay(models, "apart", "", backend="other")
    server = start(repositories=[models], flags=[f"--backend-directory={backends}", "--worker-processes=probe=model"])
    before = server.workers()
    for mode, words in modes.items():
        with pytest.raises(Exception, match=rf"the model's worker process ended \(cpu/probe/{mode}\)"):
            infer(server, mode, [1])
        harness.wait_for(lambda: words in server.log() and f"of model '{mode}'" in server.log(), 30, f"the log names {mode}")
        assert infer(server, "good", [2]) == [[2]] and infer(server, "apart", [3]) == [[3]]
    assert len(set(before) & set(server.workers())) >= 3  # the shared one, and those of the good models


def test_hang(start, tmp_path, backends):
    """stall-seconds ends a process whose library hangs; without another process all models of the backend are loaded again."""
    models = tmp_path / "models"
    lay(models, "hang", "hang")
    lay(models, "good", "")
    server = start(repositories=[models], flags=[f"--backend-directory={backends}", "--backend-config=probe,stall-seconds=1"])
    with pytest.raises(Exception, match=r"the model's worker process ended \(cpu/probe\)"):
        infer(server, "hang", [1])
    assert "TRITONBACKEND_ModelInstanceExecute of model 'hang' has taken longer than 1s" in server.log()
    assert infer(server, "good", [5]) == [[5]]


def test_refused(start, tmp_path, backends):
    """A library's own errors are the load's, one that ends the process while it loads is named, and so is a custom batching library."""
    models = tmp_path / "models"
    for mode in ("refuse", "refuse-instance", "abort-load"):
        lay(models, mode, mode)
    lay(models, "strategy", "", TRITON_BATCH_STRATEGY_PATH="/x.so")
    lay(models, "good", "", backend="other")
    server = start(repositories=[models], flags=[f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false",
                                                 "--worker-processes=probe=model"])
    why = reasons(server)
    assert "the model is refused" in why["refuse"]
    assert "no instance today" in why["refuse-instance"]
    assert "the model's worker process ended (cpu/probe/abort-load)" in why["abort-load"]
    assert "TRITON_BATCH_STRATEGY_PATH is not supported" in why["strategy"]
    assert infer(server, "good", [5]) == [[5]]


def test_completed(start, tmp_path, backends):
    """What a library sets while it completes a config is the model's, and batches form by it."""
    models = tmp_path / "models"
    (models / "completed" / "1").mkdir(parents=True)
    (models / "completed" / "config.pbtxt").write_text('backend: "probe"\nparameters { key: "mode" value { string_value: "complete" } }')
    server = start(repositories=[models], flags=[f"--backend-directory={backends}"])
    config = server.get("/v2/models/completed/config")
    assert config["max_batch_size"] == 4 and "dynamic_batching" in config
    assert infer(server, "completed", [5, 6]) == [[5, 6]]


def test_metrics_and_twice(start, tmp_path, backends):
    """A library's metric is on the metrics page; a second answer to a request changes nothing, and is logged."""
    models = tmp_path / "models"
    lay(models, "counted", "metrics")
    lay(models, "twice", "twice")
    server = start(repositories=[models], flags=[f"--backend-directory={backends}"])
    for i in range(3):
        assert infer(server, "counted", [i]) == [[i]] and infer(server, "twice", [i]) == [[i]]
    harness.wait_for(lambda: 'probe_requests{kind="a \\"quoted\\" one"} 3' in server.metrics_text(), 30, "the metric")
    assert "a backend broke a rule: TRITONBACKEND_ResponseSend was called with a response that was sent" in server.log()


def test_stream(start, tmp_path, backends):
    """Answers of a decoupled model, and the end of their process in the middle."""
    models = tmp_path / "models"
    for mode in ("stream", "crash-stream"):
        lay(models, mode, mode, batch=0, more="model_transaction_policy { decoupled: true }\n")
    server = start(repositories=[models], flags=[f"--backend-directory={backends}"])
    body = server.ask("/v2/models/stream/generate_stream", b'{"IN": [1000]}', timeout=60)[2].decode()
    assert [json.loads(line[6:])["OUT"] for line in body.splitlines() if line] == list(range(1000))
    body = server.ask("/v2/models/crash-stream/generate_stream", b'{"IN": [3]}', timeout=60)[2].decode()
    assert "worker process ended" in body
    assert server.ask("/v2/models/stream/generate_stream", b'{"IN": [1]}', timeout=60)[0] == 200


def test_killed_under_load(start, tmp_path, backends):
    """The process of a library is killed again and again while clients ask: every request is answered, and rightly."""
    models = tmp_path / "models"
    lay(models, "good", "")
    lay(models, "later", "later")  # answers by threads of the library's own
    server = start(repositories=[models], flags=[f"--backend-directory={backends}"])
    over, wrong, counts = threading.Event(), [], [0, 0]

    def ask(k, model):
        while not over.is_set():
            try:
                if infer(server, model, [k, counts[k]]) != [[k, counts[k]]]:
                    wrong.append("another answer")
            except Exception as e:  # noqa: BLE001  whatever it is, it is a lost request
                wrong.append(str(e))
            counts[k] += 1

    threads = [threading.Thread(target=ask, args=(k, m)) for k, m in enumerate(("good", "later"))]
    pids = lambda: re.findall(r'"worker is up" worker=cpu/probe pid=(\d+)', server.log())  # noqa: E731
    seen = 0
    for t in threads:
        t.start()
    try:
        for kill in [True] * 5 + [False]:
            before = list(counts)
            harness.wait_for(lambda: len(pids()) > seen and all(c > b + 5 for c, b in zip(counts, before)), 60, f"a process that answers: {counts} {wrong}")
            seen = len(pids())
            if kill:
                os.kill(int(pids()[-1]), signal.SIGKILL)
    finally:
        over.set()
        for t in threads:
            t.join(60)
    assert wrong == [] and seen >= 5


def test_calls(start, tmp_path, backends):
    """A library asks the server for another model's inference, of another library, of its own, or of no library; an error is the call's."""
    models = tmp_path / "models"
    lay(models, "good", "")
    lay(models, "apart", "", backend="other")
    (models / "native" / "1").mkdir(parents=True)
    (models / "native" / "config.pbtxt").write_text('backend: "identity"\nmax_batch_size: 8\n' + TENSORS)
    for name in ("good", "apart", "native", "nobody"):
        lay(models, f"calls-{name}", "call", calls=name)
    server = start(repositories=[models], flags=[f"--backend-directory={backends}"])
    for name in ("good", "apart", "native"):
        for values in ([7], [1, 2, 3], list(range(10000))):
            assert infer(server, f"calls-{name}", values) == [values]
    with pytest.raises(Exception, match="a value of -7 is refused"):
        infer(server, "calls-good", [-7])
    with pytest.raises(Exception, match="the model that is called is not ready"):
        infer(server, "calls-nobody", [1])


ADD = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            if x.flat[0] < 0:
                error = pb_utils.TritonError("no negative numbers", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x + np.int32(1))]))
        return answers
'''
COUNT = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for i in range(int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


CALLER = '''
import numpy as np
import triton_python_backend_utils as pb_utils


def call(model, x, **more):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)], **more)


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            if x.flat[0] == 100:  # a stream
                parts = [p for p in call("count", np.array([3], np.int32)).exec(decoupled=True)]
                y = [int(t.as_numpy()[0]) for p in parts for t in p.output_tensors()]
            elif x.flat[0] == 200:  # model control
                y = [int(pb_utils.is_model_ready(m)) for m in ("add", "nobody")]
                pb_utils.unload_model("spare")
                y.append(int(pb_utils.is_model_ready("spare")))
                pb_utils.load_model("spare")
                y.append(int(pb_utils.is_model_ready("spare")))
            else:
                got = call("nobody" if x.flat[0] == 300 else "add", x).exec()
                if got.has_error():
                    answers.append(pb_utils.InferenceResponse(error=got.error()))
                    continue
                y = got.output_tensors()[0].as_numpy().flat
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([list(y)], np.int32))]))
        return answers
'''


@pytest.fixture
def original(tmp_path, monkeypatch):
    """Triton's Python backend 2.51, unchanged, in a folder of its own: its library is found by the runtime of a config, and finds this server's
    library where that of its package would lie."""
    package = PEER / "pytriton" / "tritonserver" / "backends" / "python"
    if not (package / "libtriton_python.so").exists() or not (PEER / "py" / "bin" / "python3").exists():
        pytest.skip("Triton's Python backend is not in .cache/peer (scripts/peer.sh)")
    folder = tmp_path / "package" / "a" / "backends" / "python"
    folder.mkdir(parents=True)
    for f in ("triton_python_backend_stub", "triton_python_backend_utils.py"):
        shutil.copy(package / f, folder)
    shutil.copy(package / "libtriton_python.so", folder / "libtriton_original.so")
    libraries = folder.parent.parent.parent.parent / "nvidia_pytriton.libs"
    libraries.mkdir()
    for f in (PEER / "nvidia_pytriton.libs").resolve().iterdir():
        (libraries / f.name).symlink_to(LIBRARY.resolve() if f.name.startswith("libtritonserver") else f)
    monkeypatch.setenv("PATH", f"{PEER}/py/bin:{os.environ['PATH']}")
    return folder.parent


def test_triton_python_backend(start, tmp_path, original):
    """Triton's own Python backend serves models through this server: batches, errors, decoupled answers; nothing is left in shared memory."""
    models = tmp_path / "models"
    for name, source, more in (("add", ADD, "max_batch_size: 8"), ("count", COUNT, "model_transaction_policy { decoupled: true }")):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(source)
        (models / name / "config.pbtxt").write_text(f'backend: "python"\nruntime: "libtriton_original.so"\n{more}\n{TENSORS}')
    regions = {p.name for p in pathlib.Path("/dev/shm").glob("triton_python_backend_shm_region_*")}
    server = start(repositories=[models], flags=[f"--backend-directory={original}"])
    assert infer(server, "add", [1, 2, 3]) == [[2, 3, 4]]
    with pytest.raises(Exception, match="no negative numbers"):
        infer(server, "add", [-1])
    body = server.ask("/v2/models/count/generate_stream", b'{"IN": [50]}', timeout=60)[2].decode()
    assert [json.loads(line[6:])["OUT"] for line in body.splitlines() if line] == list(range(50))
    assert "python_be.cc" in server.log()  # it was that library
    assert server.stop() == 0
    assert {p.name for p in pathlib.Path("/dev/shm").glob("triton_python_backend_shm_region_*")} <= regions


def test_triton_python_backend_calls(start, tmp_path, original):
    """Models of Triton's own Python backend call others, of whatever backend, take streams, and load and unload models."""
    models = tmp_path / "models"
    for name, source, more in (("add", ADD, "max_batch_size: 8"), ("spare", ADD, "max_batch_size: 8"), ("caller", CALLER, "max_batch_size: 8"),
                               ("count", COUNT, "model_transaction_policy { decoupled: true }")):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(source)
        (models / name / "config.pbtxt").write_text(f'backend: "python"\nruntime: "libtriton_original.so"\n{more}\n{TENSORS}')
    server = start(repositories=[models], flags=[f"--backend-directory={original}", "--model-control-mode=explicit", "--load-model=*"])
    assert infer(server, "caller", [1, 2]) == [[2, 3]]
    assert infer(server, "caller", [100]) == [[0, 1, 2]]
    with pytest.raises(Exception, match="nobody"):
        infer(server, "caller", [300])
    with pytest.raises(Exception, match="no negative numbers"):
        infer(server, "caller", [-1])
    assert infer(server, "caller", [200], timeout=120) == [[1, 0, 0, 1]]
    assert server.stop() == 0
