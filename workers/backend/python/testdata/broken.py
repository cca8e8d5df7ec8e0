import json
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        at = json.loads(args["model_config"])["parameters"].get("AT", {"string_value": ""})["string_value"]
        if at == "exit":
            os._exit(4)
        raise ValueError("init boom")

    def execute(self, requests):
        return []
