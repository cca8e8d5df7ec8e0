"""Runs code in the model's process, so that a test can look at everything that a model sees."""
import json
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


def attempt(f, *args, **keywords):
    """What f gives, or the kind and the text of its exception."""
    try:
        return plain(f(*args, **keywords))
    except Exception as e:  # what it raises is the answer
        return f"{type(e).__name__}: {e}"


def kind(f, *args, **keywords):
    """As attempt, without the text: that of a TypeError is the binding's own."""
    return attempt(f, *args, **keywords).split(":")[0]


def plain(x):
    if isinstance(x, np.ndarray):
        return [str(x.dtype), list(x.shape), [plain(i) for i in x.reshape(-1)]]
    if isinstance(x, np.generic):
        return plain(x.item())
    if isinstance(x, bytes):
        return "b:" + x.decode("latin-1")
    if isinstance(x, (set, frozenset)):
        return sorted(map(plain, x))
    if isinstance(x, (list, tuple)):
        return [plain(i) for i in x]
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    return type(x).__name__


def tensor(name, values, dtype=np.int32):
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))


def ask(model, inputs, outputs=(), decoupled=False, **keywords):
    """A call to another model: its tensors by name, or its error."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=list(outputs), **keywords)
    answer = request.exec(decoupled=decoupled)
    return [told(a) for a in answer] if decoupled else told(answer)


def told(answer):
    if answer.has_error():
        return "error: " + answer.error().message()
    return {t.name(): plain(t.as_numpy()) for t in answer.output_tensors()}


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            names = dict(globals(), request=request, model=self)
            exec(code, names)
            text = json.dumps(plain(names.get("result")), sort_keys=True)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([text.encode()], np.object_))]))
        return answers

    def finalize(self):
        print("finalized", file=sys.stderr)
