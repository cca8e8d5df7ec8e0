"""Counts, one answer for each number."""
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name, default):
    t = pb_utils.get_input_tensor_by_name(request, name)
    return default if t is None else t.as_numpy()[0]


def count(request):
    sender, fail = request.get_response_sender(), value(request, "FAIL", -1)
    for i in range(value(request, "N", 0)):
        if i == fail:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no further", pb_utils.TritonError.UNAVAILABLE)))
        else:
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([i], np.int32))]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            if value(request, "LATE", False):
                thread = threading.Thread(target=count, args=(request,))
                thread.start()
                self.threads.append(thread)
            else:
                count(request)
        if any(value(r, "RETURN", False) for r in requests):
            return []
        return None

    def finalize(self):
        for thread in self.threads:
            thread.join()
