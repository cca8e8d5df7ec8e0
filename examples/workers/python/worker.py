"""A worker in Python: it serves models to a sluice gateway over gRPC, as docs/worker-protocol.md says.

    python examples/workers/python/worker.py --port 9000
    sluice serve --model-repository=… --worker=127.0.0.1:9000 --worker-insecure

It needs grpcio, protobuf and numpy. Its backends, by the name in a model's config.pbtxt:

    echo      answers the inputs as the outputs, in their order
    counter   decoupled: input N (INT32 [1]); one answer with OUT for each number from 0 to N-1. A config needs to say no more than
              backend: "counter": the rest is the backend's word
    sleeper   echo after as many milliseconds as its input DELAY_MS (INT32 [1]) says, unless nobody waits any more; its requests stay
              open meanwhile, and the shortest is answered first
    sum       the sum of what other models answer to the same inputs: those that the parameter "models" of its config names

A backend is a class with `load` (may raise Fault), `describe`, `execute`, which must end its batch, now or later, and `close`. What
a worker must do beside that — Hello, Load, Unload, one batch at a time for each instance, cancellation, errors — is in Service; what
a model may ask the gateway for, in Gateway; messages and tensors, in protocol.py.
"""
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import queue
import sys
import threading
import time

import grpc
import numpy as np

import protocol as w
from protocol import Fault, Tensor, headers

PROTOCOL = 2
STATUS = {code.value[0]: code for code in grpc.StatusCode}  # by the numbers of proto/worker's Code, which are gRPC's


class Job:
    """One batch on its instance. inputs are the tensors of the whole batch, rows first; left is set once nobody waits for an answer."""

    def __init__(self, batch, tensors, send, gateway):
        self.batch, self.send, self.gateway = batch, send, gateway
        self.waiting, self.left = set(range(len(batch.requests))), threading.Event()
        if any(s.HasField("region") for i in batch.inputs for s in i.segments):
            raise Fault("this worker maps no client's memory", w.UNIMPLEMENTED)
        rest = iter(tensors)
        self.inputs = [Tensor(i.name, i.data_type, i.shape, b"".join(next(rest) for _ in i.segments)) for i in batch.inputs]

    def input(self, name):
        for t in self.inputs:
            if t.name == name:
                return t
        raise Fault(f"the model wants an input '{name}'", w.INVALID_ARGUMENT)

    def run(self, execute):
        """Has a function answer the batch. What it raises fails the batch, and nothing else."""
        try:
            execute(self)
        except Exception as e:
            self.end(error=error_of(e))

    def cancel(self, requests):
        self.waiting.difference_update(requests)
        if not self.waiting:
            self.left.set()

    def pause(self, seconds=0):
        """Waits, and raises once nobody waits for an answer."""
        if self.left.wait(seconds):
            raise Fault("nobody waits for the answer", w.CANCELLED, "cancelled")

    def respond(self, request, outputs, final=False):
        """Sends one answer to one request, before the batch ends."""
        self.send(w.ExecuteResponse(
            result=w.Result(batch=self.batch.id, more=True, responses=[w.Response(request=request, final=final, outputs=headers(outputs))]),
            tensors=[t.data for t in outputs]))

    def free(self, inputs_read=False):
        """The instance takes its next batch, and this one stays open until end, which any thread may call. With inputs_read the gateway
        forgets the inputs, and executes none of the requests again should this worker end."""
        self.send(w.ExecuteResponse(result=w.Result(batch=self.batch.id, more=True, free=True, inputs_read=inputs_read)))

    def call(self, model, inputs, request=0, stream=False):
        """Asks the gateway for an inference, for one of the batch's requests; gives its answers, each a list of tensors, as they come."""
        return self.gateway.infer(w.Call(handle=self.batch.handle, instance=self.batch.instance, batch=self.batch.id, request=request),
                                  model, inputs, stream)

    def end(self, outputs=(), error=None):
        """The batch's last result: outputs of the whole batch, an error of all requests, or nothing, where each had its answer."""
        result = w.Result(batch=self.batch.id, outputs=headers(outputs), error=error)
        self.send(w.ExecuteResponse(result=result, tensors=[t.data for t in outputs]))


class Gateway:
    """What models ask the gateway for: calls over one stream. Each has its answers in a queue of its own."""

    def __init__(self):
        self.ids, self.calls, self.open = itertools.count(1), queue.SimpleQueue(), {}

    def infer(self, call, model, inputs, stream):
        call.id = next(self.ids)
        answers = self.open[call.id] = queue.SimpleQueue()
        call.infer.CopyFrom(w.Inference(model=model, inputs=headers(inputs), stream=stream))
        call.tensors.extend(t.data for t in inputs)
        self.calls.put(call)
        return self.answers(call.id, answers)

    def answers(self, id, answers):
        answer = w.CallAnswer()
        try:
            while not answer.final:
                if (answer := answers.get()) is None:
                    raise Fault("the gateway has gone", w.UNAVAILABLE)
                if answer.HasField("error"):
                    raise Fault(answer.error.message, answer.error.code, answer.error.reason)
                if not answer.final:
                    self.calls.put(w.Call(id=id, taken=True))
                if answer.outputs:
                    yield [Tensor(o.name, o.data_type, o.shape, data) for o, data in zip(answer.outputs, answer.tensors)]
        except GeneratorExit:  # who called wants no more; the final answer comes nevertheless
            self.calls.put(w.Call(id=id, cancel=True))
            raise

    def read(self, answers):
        try:
            for a in answers:
                (self.open.pop if a.final else self.open.get)(a.id).put(a)
        except grpc.RpcError:
            pass  # the gateway has gone
        finally:
            for waits in list(self.open.values()):
                waits.put(None)
            self.calls.put(None)


class Echo:
    about = {}  # what Hello says of the backend beside its name: message Backend
    open_requests = 0  # of an instance, in batches that were freed

    def load(self, c):
        if len(c.input) != len(c.output):
            counts = f"{len(c.input)} and {len(c.output)}"
            raise Fault(f"the echo backend wants as many outputs as inputs, the model config has {counts}", w.INVALID_ARGUMENT)
        self.names = [(i.name, o.name) for i, o in zip(c.input, c.output)]

    def describe(self, c):
        raise Fault("the echo backend has no model file that declares tensors", w.UNIMPLEMENTED)

    def close(self):
        pass

    def execute(self, job):
        given = [(job.input(i), o) for i, o in self.names]
        job.end([Tensor(name, t.data_type, t.shape, t.data) for t, name in given])


class Counter(Echo):
    about = {"patches": True, "placements": [w.Placement(kind=w.Placement.CPU)]}

    def describe(self, c):
        """What any model of this backend is. The gateway merges it with what the config says, and refuses what contradicts."""
        return w.DescribeResponse(patch=w.ConfigPatch(max_batch_size=0, decoupled=True,
                                                      input=[w.ModelInput(name="N", data_type=w.TYPE_INT32, dims=[1])],
                                                      output=[w.ModelOutput(name="OUT", data_type=w.TYPE_INT32, dims=[1])]))

    def load(self, c):
        if not c.model_transaction_policy.decoupled or c.max_batch_size:
            raise Fault("the counter backend wants a decoupled model without batch dimension", w.INVALID_ARGUMENT)

    def execute(self, job):
        n = int(job.input("N").array()[0])
        for i in range(n):
            job.pause()
            job.respond(0, [Tensor.of("OUT", np.array([i], np.int32))], final=i == n - 1)
        job.end()


class Sleeper(Echo):
    open_requests = 32

    def load(self, c):
        super().load(c)
        if c.max_batch_size:
            raise Fault("the sleeper backend wants a model without batch dimension", w.INVALID_ARGUMENT)
        self.threads = concurrent.futures.ThreadPoolExecutor(self.open_requests)  # for all instances together

    def execute(self, job):
        self.threads.submit(job.run, self.late)

    def late(self, job):
        job.free()  # here, so that no more requests are open than there are threads
        job.pause(int(job.input("DELAY_MS").array().flat[0]) / 1000)
        super().execute(job)

    def close(self):
        self.threads.shutdown()  # once nothing is open


class Sum(Echo):
    def load(self, c):
        self.models, self.output = c.parameters["models"].string_value.split(), c.output[0].name
        if not self.models or c.max_batch_size:
            raise Fault("the sum backend wants the parameter 'models' and no batch dimension", w.INVALID_ARGUMENT)

    def execute(self, job):
        calls = [job.call(model, job.inputs) for model in self.models]  # all at the same time
        job.end([Tensor.of(self.output, sum(next(c)[0].array() for c in calls))])


BACKENDS = {"echo": Echo, "counter": Counter, "sleeper": Sleeper, "sum": Sum}


def error_of(e):
    return e.error if isinstance(e, Fault) else w.Error(code=w.INTERNAL, message=f"{type(e).__name__}: {e}")


class Service:
    """One gateway at a time is enough for an example, so that models are kept by their handle alone: each with a thread for each of
    its instances."""

    def __init__(self):
        self.models, self.gateway = {}, Gateway()

    def Hello(self, request, context):
        if request.protocol != PROTOCOL:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the gateway speaks protocol {request.protocol}, this worker {PROTOCOL}")
        return w.HelloResponse(protocol=PROTOCOL, worker_version="example", pid=os.getpid(), devices=[w.Device(kind=w.Device.CPU)],
                               backends=[w.Backend(name=name, open_requests=b.open_requests, **b.about) for name, b in BACKENDS.items()],
                               calls=request.calls)

    def Describe(self, request, context):
        try:
            return BACKENDS[request.backend]().describe(request.config)
        except Fault as fault:
            context.abort(STATUS[fault.error.code], str(fault))

    def Load(self, request, context):
        model = BACKENDS[request.config.backend]()
        try:
            model.load(request.config)
        except Fault as fault:
            context.abort(STATUS[fault.error.code], str(fault))
        self.models[request.handle] = model, [concurrent.futures.ThreadPoolExecutor(1, i.name) for i in request.instances]
        return w.LoadResponse(open_requests=model.open_requests)

    def Unload(self, request, context):
        if loaded := self.models.pop(request.handle, None):
            model, instances = loaded
            for instance in instances:
                instance.shutdown()  # after the batches that it has
            model.close()  # after those that are open
        return w.UnloadResponse()

    def Execute(self, requests, context):
        answers, open_jobs = queue.SimpleQueue(), {}

        def send(answer):
            if not answer.result.more:
                open_jobs.pop(answer.result.batch, None)
            answers.put(answer)

        def read():
            try:
                for r in requests:
                    if not r.HasField("cancel"):
                        self.begin(r, open_jobs, send)
                    elif job := open_jobs.get(r.cancel.batch):
                        job.cancel([r.cancel.request])
            except grpc.RpcError:
                pass  # the gateway has gone
            finally:
                for job in list(open_jobs.values()):
                    job.cancel(set(job.waiting))
                answers.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(answers.get, None)

    def begin(self, r, open_jobs, send):
        try:
            model, instances = self.models[r.batch.handle]
            job = open_jobs[r.batch.id] = Job(r.batch, r.tensors, send, self.gateway)
            instances[r.batch.instance].submit(job.run, model.execute)
        except Exception as e:  # of a handle that is not loaded, too
            send(w.ExecuteResponse(result=w.Result(batch=r.batch.id, error=error_of(e))))

    def Calls(self, answers, context):
        gateway = self.gateway = Gateway()  # of this connection
        threading.Thread(target=gateway.read, args=(answers,), daemon=True).start()
        yield from iter(gateway.calls.get, None)

    def Watch(self, request, context):
        while context.is_active():
            resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            yield w.WatchResponse(resident_bytes=resident)
            time.sleep((request.interval_ms or 2000) / 1000)


def serve(port, ready=lambda port: None, listen=None):
    """Serves at a port of the loopback address; or at listen, where a gateway has started this program: until standard input ends."""
    size = 1 << 30  # of a message: a batch's tensors come in one
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=[
        ("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size), ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([w.handler(Service())])
    port = server.add_insecure_port(listen or f"127.0.0.1:{port}")
    server.start()
    ready(port)
    if listen:
        sys.stdin.buffer.read()
        server.stop(grace=None)
    server.wait_for_termination()


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description="A worker for sluice, in Python.")
    flags.add_argument("--port", type=int, default=9000, help="of the loopback address; 0: any")
    flags.add_argument("--listen", help="unix:PATH, as a gateway says that finds this program in its --backend-directory")
    given = flags.parse_args()
    serve(given.port, ready=lambda port: print(f"serving at {given.listen or f'127.0.0.1:{port}'}", flush=True), listen=given.listen)
