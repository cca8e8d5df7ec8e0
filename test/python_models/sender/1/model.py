"""Answers by response sender."""
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([text.encode()], np.object_))])


def attempt(f, *args, **keywords):
    try:
        return str(f(*args, **keywords))
    except Exception as e:  # what it raises is the answer
        return f"{type(e).__name__}: {e}"


def later(f, *args, **keywords):
    """f when execute has returned."""
    def run():
        time.sleep(0.05)
        f(*args, **keywords)
    threading.Thread(target=run).start()


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            exec(code, dict(globals(), sender=request.get_response_sender(), request=request))
        return None
