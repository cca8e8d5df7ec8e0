"""Answers with what another model answers."""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            inputs = [pb_utils.get_input_tensor_by_name(r, "INPUT0")]
            call = pb_utils.InferenceRequest(model_name="py_identity", inputs=inputs, requested_output_names=["OUTPUT0"])
            answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return answers
