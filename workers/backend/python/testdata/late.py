import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers IN[0] times by its sender, after IN[1] seconds each."""

    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        for request in requests:
            count, pause = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[:2]
            threading.Thread(target=self.answer, args=(request.get_response_sender(), int(count), float(pause)), daemon=True).start()
        return None if self.decoupled else [None] * len(requests)

    def answer(self, sender, count, pause):
        for i in range(count):
            time.sleep(pause)
            last = i == count - 1
            tensor = pb_utils.Tensor("OUT", np.array([7], dtype=np.float32))
            sender.send(pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
