"""What type is this file? Tokens before the model magika, words behind it."""
import os
import string

import numpy as np
import triton_python_backend_utils as pb_utils

TOKENS = 1024  # from the beginning of a file, and as many from its end
BLOCK = 4096  # bytes looked at on either end
PADDING = 256  # the token where there is no byte
MEANINGFUL = 8  # fewer bytes than this tell magika nothing
BEST = 3
BLANKS = string.whitespace.encode()


def tokens(data):
    """The 2048 tokens of a file; None where it has too few bytes."""
    head = data[:BLOCK].lstrip(BLANKS)[:TOKENS]
    tail = data[-BLOCK:].rstrip(BLANKS)[-TOKENS:]
    if len(head) < MEANINGFUL:
        return None
    row = np.full(2 * TOKENS, PADDING, np.int32)
    row[: len(head)] = np.frombuffer(head, np.uint8)
    if tail:
        row[-len(tail) :] = np.frombuffer(tail, np.uint8)
    return row


def by_its_bytes(data):
    """The type of a file that is too short for magika."""
    if not data:
        return "empty"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "unknown"
    return "txt"


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "labels.txt"), encoding="utf-8") as f:
            self.labels = np.array(f.read().split(), np.object_)

    def execute(self, requests):
        files = [pb_utils.get_input_tensor_by_name(r, "CONTENT").as_numpy()[:, 0] for r in requests]
        rows = [tokens(data) for batch in files for data in batch]
        asked = [row for row in rows if row is not None]
        scores = None
        if asked:
            scores, error = self.ask(np.stack(asked))
            if error:
                return [pb_utils.InferenceResponse(error=error) for _ in requests]
        answers, row, line = [], 0, 0
        for batch in files:
            label = np.full((len(batch), BEST), "", np.object_)
            score = np.zeros((len(batch), BEST), np.float32)
            for i, data in enumerate(batch):
                if rows[row] is None:
                    label[i, 0], score[i, 0] = by_its_bytes(data), 1
                else:
                    best = np.argsort(scores[line])[: -BEST - 1 : -1]
                    label[i], score[i] = self.labels[best], scores[line][best]
                    line += 1
                row += 1
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("LABEL", label), pb_utils.Tensor("SCORE", score)]))
        return answers

    def ask(self, given):
        """magika's scores for rows of tokens, 16 at a time; and an error."""
        parts = []
        for at in range(0, len(given), 16):
            inputs = [pb_utils.Tensor("bytes", given[at : at + 16])]
            request = pb_utils.InferenceRequest(model_name="magika", inputs=inputs, requested_output_names=["target_label"])
            response = request.exec()
            if response.has_error():
                return None, response.error()
            parts.append(pb_utils.get_output_tensor_by_name(response, "target_label").as_numpy())
        return np.concatenate(parts), None
