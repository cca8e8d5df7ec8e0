"""A model that is at fault, in the way it is told."""
import numpy as np
import triton_python_backend_utils as pb_utils

CODES = "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"
GOOD, RAISE, NO_LIST, NO_RESPONSE, TOO_FEW, ERROR, NAME, DATATYPE, SHAPE, EXIT, BOTH, DEEP = range(12)


def deep(n):
    if n == 0:
        raise KeyError("far down")
    deep(n - 1)


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            mode = int(pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy()[0, 0])
            out = pb_utils.Tensor("OUT", np.array([[mode]], np.int32))
            if mode == RAISE:
                raise ValueError("boom")
            if mode == NO_LIST:
                return "a word"
            if mode == NO_RESPONSE:
                return [1 for _ in requests]
            if mode == TOO_FEW:
                return []
            if mode == EXIT:
                raise SystemExit(3)
            if mode == DEEP:
                deep(2)
            if mode in (ERROR, BOTH):
                code, E = pb_utils.get_input_tensor_by_name(request, "CODE"), pb_utils.TritonError
                error = E("not today", getattr(E, CODES[code.as_numpy()[0, 0]])) if code else E("not today")
                answers.append(pb_utils.InferenceResponse([out] if mode == BOTH else [], error))
                continue
            if mode == NAME:
                out = pb_utils.Tensor("OTHER", np.array([[mode]], np.int32))
            if mode == DATATYPE:
                out = pb_utils.Tensor("OUT", np.array([[mode]], np.float32))
            if mode == SHAPE:
                out = pb_utils.Tensor("OUT", np.array([[mode, mode]], np.int32))
            answers.append(pb_utils.InferenceResponse([out]))
        return answers
