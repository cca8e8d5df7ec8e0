"""Comes back until it was executed N times. N below 0: returns an answer for a request that it reschedules."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.times = {}

    def execute(self, requests):
        answers = []
        for r in requests:
            n = int(pb_utils.get_input_tensor_by_name(r, "N").as_numpy()[0])
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.times[r.correlation_id()] = 0
            self.times[r.correlation_id()] += 1
            done = pb_utils.InferenceResponse([pb_utils.Tensor("TIMES", np.array([self.times[r.correlation_id()]], np.int32))])
            if n < 0:
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                answers.append(done)
            elif self.times[r.correlation_id()] < n:
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                answers.append(None)
            else:
                answers.append(done)
        return answers
