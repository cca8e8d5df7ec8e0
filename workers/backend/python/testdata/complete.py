import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

PID = os.getpid()


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config.as_dict()
        if config["parameters"].get("FAIL"):
            raise ValueError("no config")
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [1]})
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        sys.completed = os.getpid()
        return auto_complete_model_config

    def execute(self, requests):
        one = getattr(sys, "completed", 0) == os.getpid()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[one]], dtype=np.int64))]) for _ in requests]
