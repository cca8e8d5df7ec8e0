"""Coroutines that overlap; a DELAY below 0 fails."""
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            delay = int(pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()[0])
            if delay < 0:
                raise ValueError("no time")
            await asyncio.sleep(delay / 1000)
            sender = request.get_response_sender()
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([delay], np.int32))])
            sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
