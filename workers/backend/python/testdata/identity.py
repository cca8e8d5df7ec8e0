import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            first = tensor.flat[0] if tensor.size else 0
            if first == -1:
                raise ValueError("boom")
            if first == -2:
                os._exit(3)
            if first == -3:
                os.kill(os.getpid(), 9)
            if first == -4:
                time.sleep(600)
            if first == -5:
                while not request.is_cancelled():
                    time.sleep(0.001)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]))
        return responses
