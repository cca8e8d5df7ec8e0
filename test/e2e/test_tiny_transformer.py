"""The example of a Python-based backend, examples/backends/tiny_transformer: the same text however it is asked for."""
import http.client
import json
import queue
import shutil
import sys
import threading

import numpy as np
import pytest
import tritonclient.grpc as client

import harness

EXAMPLE = harness.ROOT / "examples" / "backends"
sys.path.insert(0, str(EXAMPLE / "tiny_transformer"))

import engine as tiny  # noqa: E402

LENGTH = 40


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    """The example's model, and `long`, which writes one text at a time that takes seconds."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(EXAMPLE / "models", folder, dirs_exist_ok=True)
    (folder / "long" / "1").mkdir(parents=True)
    shutil.copy(folder / "tiny_writer" / "config.pbtxt", folder / "long")
    (folder / "long" / "1" / "model.json").write_text('{"seed": 7, "slots": 1, "longest": 20000}')
    s = harness.Server(repositories=[folder], flags=[f"--backend-directory={EXAMPLE}"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.fixture(scope="module")
def transformer():
    return tiny.Transformer(**{k: v for k, v in json.loads((EXAMPLE / "models/tiny_writer/1/model.json").read_text()).items() if k != "slots"})


def inputs(prompt, stream=False, sampling=None):
    made = [client.InferInput("text_input", [1], "BYTES"), client.InferInput("stream", [1], "BOOL"),
            client.InferInput("sampling_parameters", [1], "BYTES")]
    for tensor, value in zip(made, (prompt.encode(), stream, json.dumps(sampling or {}).encode())):
        tensor.set_data_from_numpy(np.array([value], np.bool_ if value is stream else np.object_))
    return made


class Stream:
    """A gRPC stream of the public client, whose answers are sorted by request."""

    def __init__(self, server):
        self.came = queue.Queue()
        self.client = client.InferenceServerClient(server.grpc)
        self.client.start_stream(lambda result, error: self.came.put((result, error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        self.client.close()

    def ask(self, name, *given, model="tiny_writer"):
        self.client.async_stream_infer(model, inputs(*given), request_id=name, enable_empty_final_response=True)

    def texts(self, count):
        """{request: [its parts]} of so many requests that have ended."""
        parts, ended = {}, 0
        while ended < count:
            result, error = self.came.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                parts.setdefault(response.id, []).append(result.as_numpy("text_output")[0])
            ended += response.parameters["triton_final_response"].bool_param
        return parts


def without_cache(transformer, prompt, length):
    """The text at temperature 0, computed anew from its beginning for each token, without the engine."""
    tokens = list(prompt.encode())
    for _ in range(length):
        n = len(tokens)
        x = transformer.bytes[tokens] + transformer.positions[:n]
        for w in transformer.layers:
            q, k, v = (part.reshape(n, tiny.HEADS, tiny.WIDTH).swapaxes(0, 1) for part in np.split(tiny.norm(x) @ w["qkv"], 3, 1))
            scores = np.where(np.tri(n, dtype=bool), q @ k.swapaxes(1, 2) / tiny.WIDTH**0.5, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            x = x + mixed.swapaxes(0, 1).reshape(n, tiny.SIZE) @ w["out"]
            x = x + np.maximum(tiny.norm(x) @ w["up"], 0) @ w["down"]
        tokens.append(int(tiny.ALPHABET[(tiny.norm(x[-1:]) @ transformer.words).argmax()]))
    return bytes(tokens[-length:])


def test_cache(server, transformer):
    with Stream(server) as s:
        for prompt in ("Once upon a time", "x", "y" * 200):
            s.ask(prompt, prompt, False, {"max_tokens": LENGTH})
        got = s.texts(3)
    assert got == {prompt: [without_cache(transformer, prompt, LENGTH)] for prompt in got}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 11}, {"stop": ["q", "I#"]}], ids=["greedy", "sampled", "stop"])
def test_alone_and_together(server, sampling):
    """Fifty at a time, half of them streamed, have the texts that each has alone."""
    sampling = {"max_tokens": LENGTH, **sampling}
    prompts = {f"{i} {stream}": (f"Text {i}", stream, sampling) for i in range(25) for stream in (False, True)}
    with Stream(server) as s:
        alone = {}
        for i in range(25):
            s.ask("alone", f"Text {i}", False, sampling)
            alone[i] = s.texts(1)["alone"]
        for name, given in prompts.items():
            s.ask(name, *given)
        together = s.texts(len(prompts))
    for name, (_, stream, _) in prompts.items():
        want = alone[int(name.split()[0])]
        assert len(want) == 1 and b"".join(together[name]) == want[0], name
        assert len(together[name]) == 1 or stream
    assert len({w[0] for w in alone.values()}) > 5, "the texts differ"
    if "stop" in sampling:
        assert all(s.encode() not in w[0] for w in alone.values() for s in sampling["stop"])
        assert min(len(w[0]) for w in alone.values()) < LENGTH
    else:
        assert all(len(w[0]) == LENGTH for w in alone.values())


def generate(server, kind, body, model="tiny_writer"):
    status, _, text = server.ask(f"/v2/models/{model}/{kind}", json.dumps(body).encode(), timeout=60)
    return status, text


def test_generate(server, transformer):
    want = without_cache(transformer, "Once", 8).decode()
    status, text = generate(server, "generate", {"text_input": "Once", "max_tokens": 8})
    assert status == 200 and json.loads(text)["text_output"] == want
    status, text = generate(server, "generate_stream", {"text_input": "Once", "parameters": {"stream": True, "max_tokens": 8}})
    assert status == 200 and [json.loads(line[6:])["text_output"] for line in text.splitlines() if line] == list(want)


@pytest.mark.parametrize("body,want", [
    ({"text_input": ""}, "text_input has 0 bytes, want 1 to 255"),
    ({"text_input": "a", "sampling_parameters": '{"beams": 2}'}, "sampling parameters are max_tokens, temperature, seed, stop"),
    ({"text_input": "a", "sampling_parameters": "{"}, "Expecting property name"),
    ({"text_input": "a", "max_tokens": "many"}, "invalid literal")])
def test_refused(server, body, want):
    status, text = generate(server, "generate", body)
    assert status == 400 and want in json.loads(text)["error"]


def test_cancelled(server):
    """A client that goes frees the one slot: the next text begins although the first has most of its own before it."""
    c = http.client.HTTPConnection(server.http, timeout=60)
    c.request("POST", "/v2/models/long/generate_stream", json.dumps({"text_input": "a", "stream": True, "max_tokens": 20000}))
    response = c.getresponse()
    for _ in range(3):
        response.readline()
    c.sock.close()
    response.close()
    assert generate(server, "generate", {"text_input": "b", "max_tokens": 3}, "long")[0] == 200
    written = [line for line in server.metrics_text().splitlines() if line.startswith('tiny_transformer_tokens{model="long"')]
    assert 3 <= float(written[0].rsplit(" ", 1)[1]) < 19000


def test_slot_is_freed(transformer):
    """The engine itself: a text that nobody wants has no token more, and its slot is the next one's."""
    failures, over = [], threading.Event()
    engine = tiny.Engine(transformer, 1, failures.append)
    first = []
    engine.add(tiny.Text(b"a", lambda new, over: first.append(new), lambda: len(first) == 5, max_tokens=200))
    engine.add(tiny.Text(b"b", lambda new, last: over.set() if last else None, lambda: False, max_tokens=3))
    engine.start()
    assert over.wait(60)
    engine.stop()
    assert len(first) == 5 and not failures
