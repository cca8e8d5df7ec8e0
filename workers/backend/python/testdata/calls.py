import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Does what IN[0] says."""

    def initialize(self, args):
        self.family = pb_utils.MetricFamily("calls_total", "Calls.", pb_utils.MetricFamily.COUNTER)
        self.metric = self.family.Metric({"of": "calls"})

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.one(r))]) for r in requests]

    def call(self, model, tensor, decoupled=False):
        return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], request_id="r1",
                                         inputs=[pb_utils.Tensor("IN", tensor)]).exec(decoupled=decoupled)

    def one(self, request):
        what = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
        if what == 1:  # the sum of a large tensor that comes back
            response = self.call("echo", np.ones((1, 1 << 20), dtype=np.float32))
            return response.output_tensors()[0].as_numpy().sum().reshape(1, 1)
        if what == 2:  # how many answers a stream has
            n = sum(1 for r in self.call("stream", np.ones((1, 1), dtype=np.float32), True) if r.output_tensors())
            return np.array([[n]], dtype=np.float32)
        if what == 3:  # the code of a failure
            return np.array([[self.call("fails", np.ones((1, 1), dtype=np.float32)).error().code()]], dtype=np.float32)
        if what == 4:
            self.metric.increment(2)
            pb_utils.Logger.log_warn("four")
            ready = pb_utils.is_model_ready("echo") and not pb_utils.is_model_ready("stream")
            pb_utils.load_model("echo")
            return np.array([[self.metric.value() * ready]], dtype=np.float32)
        if what == 5:  # waits for ever
            self.call("hangs", np.ones((1, 1), dtype=np.float32))
        if what == 6:  # how many of many calls at a time have ended
            return np.array([[asyncio.run(self.many())]], dtype=np.float32)
        return np.zeros((1, 1), dtype=np.float32)

    async def many(self):
        request = pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUT"],
                                            inputs=[pb_utils.Tensor("IN", np.ones((1, 5000), dtype=np.float32))])
        return len(await asyncio.gather(*[request.async_exec() for _ in range(4000)]))
