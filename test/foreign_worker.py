"""A worker in another language, joined by --worker: examples/workers/python, variants of it that lie, and models for it."""
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import harness

FOLDER = harness.ROOT / "examples/workers/python"
ECHO = '''backend: "echo"
max_batch_size: 8
input [{ name: "A" data_type: TYPE_FP32 dims: -1 }, { name: "TEXT" data_type: TYPE_STRING dims: 1 }]
output [{ name: "A_OUT" data_type: TYPE_FP32 dims: -1 }, { name: "TEXT_OUT" data_type: TYPE_STRING dims: 1 }]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group { count: 2 kind: KIND_CPU }
'''
COUNTER = '''backend: "counter"
input { name: "N" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
'''
SLEEPER = '''backend: "sleeper"
input { name: "DELAY_MS" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
'''

NUMBERS = '''backend: "%s"
input { name: "A" data_type: TYPE_INT32 dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
'''


def adds(*models):
    return NUMBERS % "sum" + 'parameters { key: "models" value { string_value: "%s" } }\n' % " ".join(models)


MODELS = {"echo": ECHO, "counter": COUNTER, "sleeper": SLEEPER, "first": NUMBERS % "echo", "second": NUMBERS % "echo",
          "sum": adds("first", "second"), "itself": adds("itself"), "ping": adds("pong"), "pong": adds("ping"),
          "chain": adds("sum", "first"), "slow_sum": SLEEPER.replace("sleeper", "sum") + adds("sleeper").split("\n", 3)[3]}

# What a lying variant changes of the worker.
LIES = {
    "protocol": "w.HelloResponse = lambda **k: Hello(**{**k, 'protocol': 1})",
    "lane": "w.HelloResponse = lambda **k: Hello(**k, lane=2)",
    "batch": "Job.end = lambda self, outputs=(), error=None: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id + 1)))",
    "size": "Job.end = lambda self, outputs=(), error=None: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, "
            "outputs=headers(outputs)), tensors=[t.data[1:] for t in outputs]))",
    "tensors": "Job.end = lambda self, outputs=(), error=None: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, "
               "outputs=headers(outputs))))",
    "request": "Job.end = lambda self, outputs=(), error=None: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, "
               "responses=[w.Response(request=7, final=True)])))",
    "code": "Job.end = lambda self, outputs=(), error=None: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, "
            "error=w.Error(code=4, message='x'))))",
    "free twice": "Free = Job.free; Job.free = lambda self: (Free(self), Free(self))",
    "free at the end": "Job.free = lambda self: self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, free=True)))",
    "forgets": "worker.Sleeper.late = lambda self, job: job.free()",
    "free without room": "worker.w.LoadResponse = lambda **k: Load()",
    "file": "worker.Counter.about = {'formats': [w.ModelFormat(filename='../model.count')]}",
    # of calls: for a batch that is not open; with an ID that is in use; more than a model may have open, and more than anybody reads
    "call_batch": "begin = worker.Gateway.infer\n"
                  "def infer(self, call, *rest):\n    call.batch += 1000\n    return begin(self, call, *rest)\n"
                  "worker.Gateway.infer = infer",
    "call_id": "begin = worker.Gateway.infer\n"
               "def infer(self, *rest):\n    self.ids = iter([7] * 9)\n    return begin(self, *rest)\n"
               "worker.Gateway.infer = infer",
    "call_flood": "begin = worker.Gateway.infer\n"
                  "def infer(self, call, *rest):\n"
                  "    for _ in range(3000):\n        c = w.Call()\n        c.CopyFrom(call)\n        begin(self, c, *rest)\n"
                  "    return begin(self, call, *rest)\n"
                  "worker.Gateway.infer = infer",
}
# What an honest one changes.
LIES["format"] = "worker.Counter.about |= {'formats': [w.ModelFormat(filename='model.count')]}"


class Worker:
    def __init__(self, port=0, lie=""):
        code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import worker; w, Job, headers = worker.w, worker.Job, worker.headers; " \
               f"Hello, Load = w.HelloResponse, w.LoadResponse\n{LIES.get(lie, 'pass')}\nworker.serve({port}, ready=lambda p: print(p, flush=True))"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def joined(start, tmp_path):
    """A gateway whose one worker is in Python."""
    workers = []

    def begin(lie="", **options):
        workers.append(Worker(lie=lie))
        for name, config in MODELS.items():
            (tmp_path / "models" / name / "1").mkdir(parents=True, exist_ok=True)
            (tmp_path / "models" / name / "config.pbtxt").write_text(config)
        server = start(repositories=[tmp_path / "models"], flags=["--local-workers=false", f"--worker=127.0.0.1:{workers[0].port}",
                                                                  "--worker-insecure", *options.pop("flags", ())], **options)
        return server, workers

    yield begin
    for w in workers:
        w.kill()


class Stream:
    def __init__(self, server):
        self.client, self.answers, self.more = grpcclient.InferenceServerClient(server.grpc), [], threading.Condition()
        self.client.start_stream(callback=self.take)

    def take(self, result, error):
        with self.more:
            self.answers.append((result, error))
            self.more.notify()

    def count(self, n, model="counter", **options):
        t = grpcclient.InferInput("N", [1], "INT32")
        t.set_data_from_numpy(np.array([n], np.int32))
        self.client.async_stream_infer(model, [t], enable_empty_final_response=True, **options)

    def wait(self, n):
        with self.more:
            assert self.more.wait_for(lambda: len(self.answers) >= n, 20), f"{len(self.answers)} answers of {n}"
            return list(self.answers)

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def busy(server, model):
    text = urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=10).read().decode()
    return any(line.startswith(f'sluice_instances_busy{{model="{model}"') and not line.endswith(" 0") for line in text.splitlines())
