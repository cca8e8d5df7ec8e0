"""Calls of Python models that fail, wait or are many: codes and texts, queue policies, timeouts, blocked threads, nesting."""
import pytest

import harness
from test_python_calls import ADD, ADD_CONFIG, EVALUATE_CONFIG, MODELS, PYTHON, WAITS, WAITS_CONFIG, model, run

CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
FAILS = """
import triton_python_backend_utils as pb_utils

CODES = [getattr(pb_utils.TritonError, c) for c in %r]

class TritonPythonModel:
    def execute(self, requests):
        codes = [int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0]) for r in requests]
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"failure {c}", CODES[c])) for c in codes]
""" % CODES
QUEUE = """
dynamic_batching { default_queue_policy { timeout_action: REJECT allow_timeout_override: true max_queue_size: 1 } }
max_batch_size: 1 instance_group { kind: KIND_CPU count: 1 }
"""
REQUEST = """
import asyncio, pathlib, threading, time
def request(model, value=1, shape=(1,), **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor('IN', [value], np.float32) if shape == (1,) else
        pb_utils.Tensor('IN', np.full(shape, value, np.float32))], requested_output_names=['OUT'], **more)
def error(response):
    return [response.error().message(), int(response.error().code())] if response.has_error() else None
"""


@pytest.fixture(scope="module")
def calling(built, tmp_path_factory):
    """A server; .models is the folder of its models. Each runs one request at a time."""
    root = tmp_path_factory.mktemp("calls") / "models"
    source = (MODELS / "evaluate" / "1" / "model.py").read_text()
    for name in ("evaluate", "second", "third"):
        model(root, name, EVALUATE_CONFIG, source)
    model(root, "add", ADD_CONFIG, ADD)
    model(root, "waits", WAITS_CONFIG, WAITS)
    model(root, "fails", WAITS_CONFIG, FAILS)
    model(root, "queued", WAITS_CONFIG + QUEUE, WAITS.replace("np.zeros(1,", "np.zeros((1, 1),"))
    s = harness.Server(repositories=[root], flags=[PYTHON])
    s.models = root
    yield s
    assert s.stop() == 0, s.log()[-2000:]


def test_codes(calling):
    """The called model's error reaches the caller with its words and its code."""
    status, got = run(calling, REQUEST + f"""
result = [[error(request('fails', i).exec()), [f'failure {{i}}', int(getattr(pb_utils.TritonError, c))]] for i, c in enumerate({CODES})]
""")
    assert status == 200 and [g for g, _ in got] == [want for _, want in got], got


def test_nobody(calling):
    """A model that isn't there, in each form of a call."""
    forms = """
async def go():
    a = await request('nobody').async_exec()
    b = [r async for r in await request('nobody').async_exec(decoupled=True)]
    return [error(a)] + [error(r) for r in b]
result = [error(request('nobody').exec())] + [error(r) for r in request('nobody').exec(decoupled=True)] + asyncio.run(go())
"""
    status, got = run(calling, REQUEST + forms)
    assert status == 200 and len(got) == 4 and all(g == got[0] for g in got), got
    assert got[0][0] == "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not ready."


def test_queue_policy(calling):
    """The called model's queue: what waits beyond its own timeout, or finds the queue full, fails as for any client."""
    folder = calling.models / "queued"
    code = """
folder = pathlib.Path(%r)
async def go():
    first = request('queued', shape=(1, 1)).async_exec()
    while not (folder / 'began').exists():
        await asyncio.sleep(0.002)
    expired = await request('queued', shape=(1, 1), timeout=1000).async_exec()
    async def ask():
        return await request('queued', shape=(1, 1)).async_exec()
    two = [asyncio.ensure_future(ask()) for _ in range(2)]  # there is room for one of them, whichever comes first
    done, rest = await asyncio.wait(two, return_when=asyncio.FIRST_COMPLETED)
    full, waiting = done.pop().result(), rest.pop()
    (folder / 'go').touch()
    return [error(expired), error(full), error(await first), error(await waiting)]
result = asyncio.run(go()) + [[int(pb_utils.TritonError.UNAVAILABLE)]]
""" % str(folder)
    try:
        status, got = run(calling, REQUEST + code)
    finally:
        (folder / "go").unlink(missing_ok=True)
        (folder / "began").unlink(missing_ok=True)
    assert status == 200, got
    expired, full, first, waiting, (unavailable,) = got
    assert expired == ["Request timeout expired", unavailable], got
    assert "maximum queue size" in full[0] and full[1] == unavailable, got
    assert first is None and waiting is None, got


def test_blocked_threads(calling):
    """Forty threads of one instance that wait for calls: it makes others meanwhile, and all have their answers."""
    folder = calling.models / "waits"
    code = """
folder, errors, call = pathlib.Path(%r), [], add
threads = [threading.Thread(target=lambda: errors.append(error(request('waits').exec()))) for _ in range(40)]
for t in threads:
    t.start()
while not (folder / 'began').exists():
    time.sleep(0.002)
others = [call(i)['OUT'][2][0] for i in range(20)]
alive = sum(t.is_alive() for t in threads)
(folder / 'go').touch()
for t in threads:
    t.join()
result = [others, alive, errors]
""" % str(folder)
    try:
        status, got = run(calling, REQUEST + code)
    finally:
        (folder / "go").unlink(missing_ok=True)
        (folder / "began").unlink(missing_ok=True)
    assert status == 200 and got == [[i + 1 for i in range(20)], 40, [None] * 40], got


def test_nested(calling):
    """A call of a call of a call; an error of the innermost reaches the outermost; a cycle over three is known at once."""
    def within(names, code):
        for name in names:
            code = (f"got = ask({name!r}, [pb_utils.Tensor('CODE', np.array([{code!r}.encode()], np.object_))])\n"
                    "result = got if isinstance(got, str) else got['RESULT'][2][0][2:]")
        return code
    status, got = run(calling, within(("third", "second"), "result = ask('add', [tensor('IN', [7], np.float32)], ['OUT'])['OUT'][2][0]"))
    assert status == 200 and "8" in got, got
    status, got = run(calling, within(("third", "second"), "raise RuntimeError('the innermost')"))
    assert "the innermost" in got, (status, got)
    status, got = run(calling, within(("evaluate", "third", "second"), "result = 1"))
    assert "all of its instances wait for" in got, (status, got)
