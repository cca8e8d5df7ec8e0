"""A Python-based backend whose engine has an event loop in a thread of its own, as vLLM's: hundreds of open requests, late
answers, cancellation, and the engine's end in the middle."""
import json
import queue

import numpy as np
import pytest
import tritonclient.grpc as client

import harness

BACKEND = '''
import asyncio
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.name, self.logger = args["model_name"], pb_utils.Logger
        with open(os.path.join(pb_utils.get_model_dir(), "words.txt")) as f:
            self.words = f.read().split()
        self.family = pb_utils.MetricFamily(name="engine_requests", description="In the engine", kind=pb_utils.MetricFamily.GAUGE)
        self.gauge = self.family.Metric(labels={"model": self.name})
        self.broken, self.tasks = None, set()
        self.loop, self.opened = asyncio.new_event_loop(), asyncio.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.ended())
        self.loop.close()

    async def ended(self):
        self.end = asyncio.Event()
        await self.end.wait()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def execute(self, requests):
        if self.broken is not None:
            self.logger.log_error(f"[engine] {self.broken}")
            pb_utils.unload_model(self.name)
        for request in requests:
            asyncio.run_coroutine_threadsafe(self.take(request), self.loop).result()

    async def take(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].decode()
        sender = request.get_response_sender()
        if self.broken is not None:
            error = pb_utils.TritonError(self.broken, pb_utils.TritonError.UNAVAILABLE)
            return sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
        if text == "go":
            self.opened.set()
        elif text == "break":
            self.broken = "the engine is dead"
        task = self.loop.create_task(self.answer(sender, text))
        self.tasks.add(task)
        self.gauge.set(len(self.tasks))
        task.add_done_callback(self.done)

    def done(self, task):
        self.tasks.discard(task)
        self.gauge.set(len(self.tasks))

    async def answer(self, sender, text):
        try:
            async for word in self.generate(sender, text):
                if word is None:
                    self.logger.log_info("[engine] cancelled")
                    error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
                    return sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                output = pb_utils.Tensor("WORD", np.array([f"{text} {word}".encode()], dtype=self.numpy_type()))
                sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
            sender.send(flags=FINAL)
        except Exception as e:
            self.logger.log_info(f"[engine] {e}")
            error = pb_utils.TritonError(f"error in the engine: {e}", pb_utils.TritonError.INTERNAL)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def numpy_type(self):
        return pb_utils.triton_string_to_numpy("TYPE_STRING")

    async def generate(self, sender, text):
        """The words, once somebody has said go; None when nobody wants them any more."""
        for word in self.words:
            yield word
            while not self.opened.is_set():
                if sender.is_cancelled():
                    yield None
                if self.broken is not None:
                    raise RuntimeError(self.broken)
                await asyncio.sleep(0.01)

    def finalize(self):
        self.logger.log_info("[engine] finalize")
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join()
'''
WORDS = ["first", "second", "third"]
STREAMS, EACH = 5, 100  # a stream has at most 128 requests at a time


@pytest.fixture
def server(built, tmp_path):
    (tmp_path / "backends" / "engine").mkdir(parents=True)
    (tmp_path / "backends" / "engine" / "model.py").write_text(BACKEND)
    (tmp_path / "models" / "words" / "1").mkdir(parents=True)
    (tmp_path / "models" / "words" / "config.pbtxt").write_text('backend: "engine"\ninstance_group { count: 1 kind: KIND_CPU }\n')
    (tmp_path / "models" / "words" / "1" / "words.txt").write_text(" ".join(WORDS))
    s = harness.Server(repositories=[tmp_path / "models"], flags=[f"--backend-directory={tmp_path / 'backends'}",
                                                                  "--model-control-mode=explicit", "--load-model=words"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


class Stream:
    def __init__(self, server):
        self.came = queue.Queue()
        self.client = client.InferenceServerClient(server.grpc)
        self.client.start_stream(lambda result, error: self.came.put((result, error)))

    def ask(self, text):
        given = client.InferInput("TEXT", [1], "BYTES")
        given.set_data_from_numpy(np.array([text.encode()], np.object_))
        self.client.async_stream_infer("words", [given], request_id=text, enable_empty_final_response=True)

    def next(self):
        """(id, word or error, final) of the next answer."""
        result, error = self.came.get(timeout=60)
        if error is not None:
            return None, str(error), True
        response = result.get_response()
        word = result.as_numpy("WORD")[0].decode() if response.outputs else None
        return response.id, word, response.parameters["triton_final_response"].bool_param

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def in_engine(server):
    lines = [line for line in server.metrics_text().splitlines() if line.startswith("engine_requests{")]
    return int(float(lines[0].rsplit(" ", 1)[1])) if lines else -1


def open_all(server):
    """The streams, with all requests in the engine and their first words read."""
    streams = [Stream(server) for _ in range(STREAMS)]
    for n, s in enumerate(streams):
        for i in range(EACH):
            s.ask(f"{n} {i}")
    for s in streams:
        for _ in range(EACH):
            name, word, final = s.next()
            assert word == f"{name} {WORDS[0]}" and not final
    harness.wait_for(lambda: in_engine(server) == STREAMS * EACH, 60, "all requests in the engine")
    return streams


def test_hundreds(server):
    """Late answers reach whoever asked for them; requests of a client that goes leave the engine."""
    streams = open_all(server)
    streams.pop().close(cancel=True)
    harness.wait_for(lambda: in_engine(server) == (STREAMS - 1) * EACH, 60, "the cancelled ones out of the engine")
    assert server.log().count("[engine] cancelled") == EACH
    last = Stream(server)
    last.ask("go")
    assert [last.next()[1] for _ in range(4)] == [f"go {w}" for w in WORDS] + [None]
    for s in streams:
        words, ended = {}, 0
        while ended < EACH:
            name, word, final = s.next()
            words.setdefault(name, []).append(word)
            ended += final
        assert len(words) == EACH
        for name, got in words.items():
            assert got == [f"{name} {w}" for w in WORDS[1:]] + [None]
    harness.wait_for(lambda: in_engine(server) == 0, 60, "an empty engine")
    for s in [*streams, last]:
        s.close()


def test_broken(server):
    """The engine fails under open requests: each has the error; the model unloads itself, and can be loaded again."""
    streams = open_all(server)
    last = Stream(server)
    last.ask("break")
    assert last.next()[1] == "break first"
    for s in streams:
        for _ in range(EACH):
            _, text, _ = s.next()
            assert "error in the engine: the engine is dead" in text
    last.ask("later")
    told = [last.next()[1] for _ in range(2)]
    assert sorted(told) == ["error in the engine: the engine is dead", "the engine is dead"], told
    harness.wait_for(lambda: server.status("/v2/models/words/ready") != 200, 60, "the model unloaded")
    harness.wait_for(lambda: "[engine] finalize" in server.log(), 60, "finalize")
    assert "[engine] the engine is dead" in server.log()
    assert server.ask("/v2/repository/models/words/load", b"")[0] == 200
    status, _, text = server.ask("/v2/models/words/generate_stream", json.dumps({"TEXT": "go"}).encode())
    assert status == 200 and text.count(b"WORD") == 3
    for s in [*streams, last]:
        s.close()
