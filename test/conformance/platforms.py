"""What original_platforms.py and test_platforms_golden.py share: the models that are loaded, and the sending of a case."""
import base64
import json
import shutil
from http.client import HTTPConnection, HTTPException

ENSEMBLE = '''name: "all"
platform: "ensemble"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
ensemble_scheduling { step [ { model_name: "plain" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
'''


def lay(models, root):
    """Folders as SageMaker lays them: <root>/<hash>/model, of the model "plain"."""
    for place in ("aa/model/plain", "bb/model/plain", "top/model", "ens/model/plain"):
        shutil.copytree(models / "plain", root / place)
    config = root / "top/model/config.pbtxt"
    config.write_text(config.read_text().replace('"plain"', '"model"'))
    (root / "ens/model/all/1").mkdir(parents=True)
    (root / "ens/model/all/config.pbtxt").write_text(ENSEMBLE)
    shutil.copytree(models / "plain", root / "broken/model/plain")
    (root / "broken/model/plain/config.pbtxt").write_text("max_batch_size: what\n")


def exchange(address, case, root):
    """{"status", "type", "body" (JSON where it is, else text), "tail" (base64) of a binary answer}"""
    method, path, body, headers = case
    connection = HTTPConnection(address, timeout=30)
    try:
        if body is not None:
            body = body.replace(b"{root}", root.encode())
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        data, kind = answer.read(), answer.headers.get("Content-Type", "")
        got = {"status": answer.status, "type": kind}
        length = answer.headers.get("Inference-Header-Content-Length")
        before, _, after = kind.partition("json-header-size=")
        if after:
            length, got["type"] = after, before
        if length is not None:
            got["tail"] = base64.b64encode(data[int(length):]).decode()
            data = data[:int(length)]
        try:
            got["body"] = json.loads(data.decode().replace(root, "{root}"))
        except ValueError:
            got["body"] = data.decode(errors="replace").replace(root, "{root}")
        return got
    except (OSError, HTTPException) as e:
        return {"status": 0, "type": "", "body": type(e).__name__}
    finally:
        connection.close()
