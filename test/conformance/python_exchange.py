"""Asks a server python_cases.py, and gives its answers in the form that python.json keeps."""
import json
import pathlib
import queue
import shutil

import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

import exchange
import python_cases


MODELS = pathlib.Path(__file__).resolve().parents[1] / "python_models"
SIMPLE = """backend: "python"
max_batch_size: 0
input [ { name: "IN", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] } ]
"""


def lay(folder, bad):
    """The models that load, in folder; or the others, and one that does."""
    for model in MODELS.iterdir():
        if model.name.startswith("bad_") == bad or bad and model.name == "types":
            shutil.copytree(model, folder / model.name, ignore=shutil.ignore_patterns("__pycache__"))
            (folder / model.name / "1").mkdir(exist_ok=True)
    if bad:  # what is no Python is not kept as a file
        (folder / "bad_syntax" / "1").mkdir(parents=True)
        (folder / "bad_syntax" / "config.pbtxt").write_text(SIMPLE)
        (folder / "bad_syntax" / "1" / "model.py").write_text("class TritonPythonModel\n")
    return folder


def infer(address, model, inputs, members):
    body = {"inputs": [{"name": n, "datatype": t, "shape": s, "data": d} for n, (t, s, d) in inputs.items()], **members}
    return exchange.http(address, f"/v2/models/{model}/infer", json.dumps(body), {"Content-Type": "application/json"})


def code(address, model, text):
    """The answer; of `evaluate` what it called `result`."""
    got = infer(address, model, {"CODE": ("BYTES", [1], [text])}, {})
    if got["status"] == 200 and model == "evaluate" and isinstance(got["body"], dict):
        return {"status": 200, "result": json.loads(got["body"]["outputs"][0]["data"][0])}
    return got


def array(datatype, shape, data):
    if datatype == "BYTES":
        return np.array([d.encode() for d in data], np.object_).reshape(shape)
    return np.array(data, triton_to_np_dtype(datatype)).reshape(shape)


def stream(address, model, requests):
    """What comes back, up to the last final answer: outputs, or the text of an error."""
    came = queue.Queue()
    got, finals, failed = [], 0, False
    with client.InferenceServerClient(address) as server:
        server.start_stream(lambda result, error: came.put((result, error)), stream_timeout=30)
        for given in requests:
            tensors = []
            for name, (datatype, shape, data) in given.items():
                t = client.InferInput(name, shape, datatype)
                t.set_data_from_numpy(array(datatype, shape, data))
                tensors.append(t)
            try:
                server.async_stream_infer(model, tensors, enable_empty_final_response=True)
            except InferenceServerException as e:  # the stream has ended
                return [*got, e.message()]
        while finals < len(requests):
            try:
                result, error = came.get(timeout=3 if failed else 20)
            except queue.Empty:
                got.append("nothing more")
                break
            if error is not None:
                got.append(error.message() if isinstance(error, InferenceServerException) else str(error))
                failed = True
                finals += model != "counter"  # of a decoupled model an error need not be the last
                continue
            answer = result.get_response()
            finals += answer.parameters["triton_final_response"].bool_param
            outputs = {o.name: result.as_numpy(o.name).tolist() for o in answer.outputs}
            got.append({"outputs": outputs, "final": answer.parameters["triton_final_response"].bool_param})
        server.stop_stream(cancel_requests=True)
    return got


def load(addresses, model):
    """What the call to load it says, and what the index then says of it; at last it is unloaded."""
    said = exchange.http(addresses[0], f"/v2/repository/models/{model}/load", "{}", {})
    index = exchange.http(addresses[0], "/v2/repository/index", "{}", {})["body"]
    state = [{k: v for k, v in row.items() if k != "name"} for row in index if row["name"] == model]
    exchange.http(addresses[0], f"/v2/repository/models/{model}/unload", "{}", {})
    return {"load": said, "index": state}


def ask(addresses, revive=lambda answer: answer):
    """All but LOAD; revive looks at each answer of HTTP."""
    return {
        "http": {n: revive(infer(addresses[0], *c)) for n, c in python_cases.HTTP.items()},
        "code": {n: revive(code(addresses[0], "evaluate", c)) for n, c in python_cases.CODE.items()},
        "sender": {n: revive(code(addresses[0], "sender", c)) for n, c in python_cases.SENDER.items()},
        "stream": {n: stream(addresses[1], *c) for n, c in python_cases.STREAM.items()},
    }
