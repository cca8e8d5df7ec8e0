"""What a request costs in the process of a Python model: CPU of that process alone, driven by the channel's peer of the tests.

    bench/python_runner.py [--python PYTHON] [--n 20000]
"""
import argparse
import pathlib
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "test" / "python"))
import numpy as np  # noqa: E402
import peer as peers  # noqa: E402
from model_sources import execute  # noqa: E402
from sluice_runner import layout as l  # noqa: E402

IDENTITY = """        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", x)]))
        return responses
"""
STREAM = """        sender = requests[0].get_response_sender()
        for i in range(1000):
            sender.send(out(0, [1.0]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALL = """        request = pb_utils.InferenceRequest(model_name="o", requested_output_names=["O"], inputs=requests[0].inputs())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.exec().output_tensors()[0].as_numpy())])]
"""
MICRO = """        r = requests[0]
        family = pb_utils.MetricFamily("c", "", pb_utils.MetricFamily.COUNTER)
        counter = family.Metric()
        log = pb_utils.Logger.log_verbose
        strings = np.array([b"x" * (i % 40) for i in range(1000)], object)
        wire = pb_utils.serialize_byte_tensor(strings)
        def each(f, n):
            at = time.perf_counter()
            for _ in range(n):
                f()
            return (time.perf_counter() - at) / n * 1e6
        array = np.zeros(16, np.float32)
        said = {"is_cancelled": each(r.is_cancelled, 100000), "log line that is not shown": each(lambda: log("x"), 100000),
                "metric.increment": each(lambda: counter.increment(1), 5000),
                "1000 BYTES out": each(lambda: pb_utils.serialize_byte_tensor(strings), 200),
                "1000 BYTES in": each(lambda: pb_utils.deserialize_bytes_tensor(wire), 200),
                "Tensor()": each(lambda: pb_utils.Tensor("x", array), 100000), "to_dlpack": each(pb_utils.Tensor("x", array).to_dlpack, 20000)}
        return [out(0, np.array([json.dumps(said)], object))]
"""


def cpu(peer):
    """Seconds of CPU that all threads of the process have had."""
    total = 0
    for task in pathlib.Path(f"/proc/{peer.process.pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(name, source, n, requests, config=None, per=1, kwargs=None, serve=None, grant=(0, 0, 0)):
    with tempfile.TemporaryDirectory() as folder:
        peer = peers.Peer(folder, source, **(kwargs or {}))
        try:
            peer.start(config)

            def rounds(n):
                for _ in range(n):
                    peer.next_offset = 1 << 20
                    peer.execute(*requests, grant=grant)
                    if serve:
                        serve(peer)
                    peer.result(l.RESULT)

            rounds(max(n // 10, 20))
            before, at = cpu(peer), time.perf_counter()
            rounds(n)
            spent, took = cpu(peer) - before, time.perf_counter() - at
            print(f"{name:44} {spent / n / per * 1e6:8.1f} us of CPU  {took / n / per * 1e6:8.1f} us in all")
        finally:
            peer.close()


def parts(peer):
    for _ in range(1001):
        peer.part()


def answer(peer):
    call = peer.call()
    peer.reply(call.id, b"\3" + bytes(9) + struct.pack("<H", 0))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--python", default=sys.executable)
    arguments.add_argument("--n", type=int, default=20000)
    a = arguments.parse_args()
    kwargs = {"python": a.python}
    config = {"max_batch_size": 0, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
              "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}]}
    small = {"inputs": {"IN": np.zeros(16, np.float32)}}
    large = {"inputs": {"IN": np.zeros(150528, np.float32)}, "area": 2}
    source = execute(IDENTITY)
    measure("identity of 16 floats", source, a.n, [small], config, kwargs=kwargs)
    measure("the same with an id", source, a.n, [{**small, "id": "request-7"}], config, kwargs=kwargs)
    measure("the same in batches of 8, each", source, a.n // 4, [{**small, "key": 1 << 16 | i} for i in range(8)], config, 8, kwargs)
    measure("the same in batches of 32, each", source, a.n // 16, [{**small, "key": 1 << 16 | i} for i in range(32)], config, 32, kwargs)
    measure("async identity of 16 floats", execute(IDENTITY, "async def"), a.n, [small], config, kwargs=kwargs)
    measure("identity of 602 kB, with a grant", source, 500, [large], config, kwargs=kwargs, grant=(3, 8192, 700000))
    measure("an answer of a stream", execute(STREAM), 20, [small], None, 1000, {"decoupled": True, **kwargs}, parts)
    measure("a call of a model that answers nothing", execute(CALL.replace("request.exec().output_tensors()[0].as_numpy()", "np.array("
            "[request.exec().has_error()])")), a.n // 4, [small], None, kwargs=kwargs, serve=answer)
    with tempfile.TemporaryDirectory() as folder:
        peer = peers.Peer(folder, execute(MICRO), **kwargs)
        try:
            peer.start()
            import json
            for what, us in json.loads(peer.answers(small)[0].outputs["OUT"][0]).items():
                print(f"{what:44} {us:8.2f} us")
        finally:
            peer.close()


if __name__ == "__main__":
    main()
