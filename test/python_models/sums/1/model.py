"""Adds up what a sequence sends."""
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for r in requests:
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[r.correlation_id()] = 0
            self.sums[r.correlation_id()] += int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0])
            start = pb_utils.get_input_tensor_by_name(r, "START").as_numpy()
            seen = json.dumps([r.correlation_id(), r.flags(), start.tolist()]).encode()
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("SUM", np.array([self.sums[r.correlation_id()]], np.int32)),
                pb_utils.Tensor("SEEN", np.array([seen], np.object_)),
            ]))
        return answers
