"""Processes that a model forks off or spawns."""
import json

import numpy as np
from model_sources import ONE, execute
from sluice_runner import layout as l

KEY = 1 << 16

POOL = """        import multiprocessing
        with multiprocessing.get_context("fork").Pool(4) as pool:
            got = pool.map(ask, range(12))
        return [out(0, got)]
def ask(i):
    pb_utils.Logger.log_info(f"asks {i}")
    family = pb_utils.MetricFamily("f", "", pb_utils.MetricFamily.COUNTER)
    family.Metric().increment(1)
    r = pb_utils.InferenceRequest(model_name="o", inputs=[pb_utils.Tensor("I", np.array([i]))], requested_output_names=["O"], parameters={"i": i})
    if i % 3 == 1:
        return sum(a.output_tensors()[0].as_numpy()[0] for a in r.exec(decoupled=True))
    if i % 3 == 2:
        async def later():
            return (await r.async_exec()).output_tensors()[0].as_numpy()[0]
        return asyncio.run(later())
    assert pb_utils.is_model_ready("o")
    return r.exec().output_tensors()[0].as_numpy()[0]
"""


def test_pool(start):
    """Calls, logs, metrics and model control of forked children go through their parent."""
    peer = start(execute(POOL))
    peer.control = lambda *_: 1
    peer.levels(15)
    for _ in range(2):
        peer.execute(ONE)
        for _ in range(12):
            call = peer.call()
            assert call.parent == KEY and json.loads(call.parameters) == {"i": int(call.inputs["I"][0])}
            peer.answer_call(call, {"O": call.inputs["I"] * 10})
        assert peer.result(l.RESULT)[2][0].outputs["OUT"].tolist() == [10 * i for i in range(12)]
    peer.finalize()
    assert sorted({m for _, _, _, m in peer.logs}) == sorted({f"asks {i}" for i in range(12)})
    assert peer.metric_values["f", "{}"] == 24


def test_child_ends(start):
    """A child that ends as programs do, with the model's requests in its memory, answers none of them and breaks no ring."""
    peer = start(execute("""        sender = requests[0].get_response_sender()
        pid = os.fork()
        if not pid:
            try:
                sender.send(out(0, [7.0]), 1)
            except pb_utils.TritonModelException as e:
                print(e, flush=True)
            requests.clear()
            sender = None
            import signal
            os.kill(os.getpid(), signal.SIGTERM)  # does what it does everywhere, not what it does in the model's process
        status = os.waitpid(pid, 0)[1]
        sender.send(out(0, [status]), 1)
"""), decoupled=True)
    for _ in range(3):
        assert peer.answers(ONE)[0].status == l.OPEN
        part = peer.part()
        assert part.flags == 3 and part.answer.outputs["OUT"].tolist() == [15]
    peer.finalize()
    peer.close()
    assert peer.output["stdout"].decode().startswith("a process that the model has forked off can't answer the model's requests")


def test_ended_at_birth(start):
    """SIGTERM ends a child also when it comes before the child has replaced its parent's handler: a pool waits for that."""
    peer = start(execute("""        import signal
        parent, real = os.getpid(), signal.signal
        def late(number, handler):
            if os.getpid() != parent:
                signal.signal = real
                os.kill(os.getpid(), signal.SIGTERM)
            return real(number, handler)
        signal.signal = late
        pid = os.fork()
        if not pid:
            os._exit(0)
        signal.signal = real
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return [out(0, [os.waitpid(pid, 0)[1], len(blocked)])]
"""))
    assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [15, 0]
    peer.finalize()


def test_children_of_children(start):
    peer = start(execute("""        def ask():
            r = pb_utils.InferenceRequest(model_name="o", inputs=[], requested_output_names=[])
            return r.exec().error().message()
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            inner = os.fork()
            if not inner:
                os.write(write, ask().encode())
                os._exit(0)
            os.waitpid(inner, 0)
            os._exit(0)
        os.waitpid(pid, 0)
        return [out(0, np.array([os.read(read, 100)], object))]
"""))
    peer.execute(ONE)
    peer.answer_call(peer.call(), code=5, message="nothing there")
    assert peer.result(l.RESULT)[2][0].outputs["OUT"].tolist() == [b"nothing there"]


def test_spawned(start):
    """A spawned interpreter has no channel, and is told so."""
    peer = start(execute("""        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return [out(0, np.array(pool.map(ask, range(1)), object))]
def ask(i):
    try:
        pb_utils.InferenceRequest(model_name="o", inputs=[], requested_output_names=[]).exec()
    except pb_utils.TritonModelException as e:
        return str(e)
"""))
    assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [b"BLS is only supported during the 'execute' function."]


def test_programs(start):
    """Programs that a model starts end by signals, as they do everywhere."""
    peer = start(execute("""        import signal, subprocess
        p = subprocess.Popen(["sleep", "100"])
        p.send_signal(signal.SIGTERM)
        a = p.wait()
        os.kill(os.getpid(), signal.SIGINT)  # the model's own process does not
        os.kill(os.getpid(), signal.SIGTERM)
        return [out(0, np.array([a]))]
"""))
    assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [-15]
    peer.finalize()
