"""The runner of Python models over its channel: a model's life, batches and what they answer."""
import json

import numpy as np
import pytest
from model_sources import ONE, TWO, execute, model
from peer import string
from sluice_runner import layout as l

IDENTITY = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
                for r in requests]
"""


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
                                   "float32", "float64"])
def test_identity(start, dtype):
    peer = start(IDENTITY)
    data = np.arange(6).reshape(2, 3).astype(dtype)
    answer, = peer.answers({"inputs": {"IN": data}})
    assert answer.status == l.ANSWERED and answer.code == 0
    assert answer.outputs["OUT"].dtype == data.dtype
    np.testing.assert_array_equal(answer.outputs["OUT"], data)
    peer.finalize()


def test_many_batches(start):
    """Frames wrap around the ends of the rings."""
    peer = start(IDENTITY)
    for i in range(300):
        data = [np.full((n,), i, np.float32) for n in (1, 300, 1000)]
        answers = peer.answers(*({"inputs": {"IN": d}, "key": (i + 1) << 16 | s} for s, d in enumerate(data)))
        for answer, d in zip(answers, data):
            np.testing.assert_array_equal(answer.outputs["OUT"], d)


def test_bytes(start):
    peer = start(IDENTITY)
    for items in ([b"", b"a", "ä".encode() * 200, b"\0x\0"], [], [b"x"] * 1000, [b"y" * 300000]):
        data = np.array(items, object)
        answer, = peer.answers({"inputs": {"IN": data}})
        assert answer.outputs["OUT"].tolist() == items


@pytest.mark.parametrize("body, want", [
    ("        raise ValueError('boom')\n", "ValueError: boom\n\nAt:\n  1/model.py(10): execute\n"),
    ("        def inner(): raise KeyError('k')\n        inner()\n",
     "KeyError: 'k'\n\nAt:\n  1/model.py(10): inner\n  1/model.py(11): execute\n"),
    ("        sys.exit(3)\n", "SystemExit: 3\n\nAt:\n  1/model.py(10): execute\n"),
    ("        class E(Exception):\n            def __str__(self): return 1\n        raise E\n",
     "E: its text can't be had: TypeError\n\nAt:\n  1/model.py(12): execute\n"),
    ("        pb_utils.Tensor('', np.zeros(1))\n",
     "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  1/model.py(10): execute\n"),
    ("        return 'x'\n", "Expected a list in the execute return, found type '<class 'str'>'."),
    ("        return ['x', 'y']\n",
     "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'."),
    ("        return []\n", "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
     "size is:2, and InferenceResponse(s) size is:0\n"),
    ("        requests[0].set_release_flags(2)\n        return [out(r, [1.0]) for r in requests]\n",
     "Expected a None object in the execute function return list for reschduled request, found type '<class "
     "'c_python_backend_utils.InferenceResponse'>'."),
])
def test_faults_of_execute(start, body, want):
    """Whole batches that fail, with Triton's texts; the instance goes on."""
    peer = start(execute(body))
    for _ in range(2):
        assert peer.answers(*TWO).message == want
    if "At:" in want:
        assert "Traceback (most recent call last)" in peer.answers(*TWO).traceback
    peer.finalize()


def test_decoupled_returns_something(start):
    peer = start(execute("        return []\n"), decoupled=True)
    assert peer.answers(ONE).message == \
        "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."


@pytest.mark.parametrize("code, wire", [("UNKNOWN", 2), ("INTERNAL", 13), ("NOT_FOUND", 5), ("INVALID_ARG", 3), ("UNAVAILABLE", 14),
                                        ("UNSUPPORTED", 12), ("ALREADY_EXISTS", 6), ("CANCELLED", 1)])
def test_error_of_one_request(start, code, wire):
    peer = start(execute(f"""        e = pb_utils.TritonError("no", pb_utils.TritonError.{code})
        return [pb_utils.InferenceResponse([], e, {{"a": 1}}), out(requests[1], [1.0])]
"""))
    bad, good = peer.answers(*TWO)
    assert (bad.code, bad.message, json.loads(bad.parameters)) == (wire, "no", {"a": 1})
    assert good.code == 0 and good.outputs["OUT"].tolist() == [1.0]


def test_reschedule(start):
    peer = start(execute("        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\n"
                         "        return [None, out(0, [1.0])]\n"))
    a, b = peer.answers(*TWO)
    assert (a.status, b.status) == (l.RESCHEDULED, l.ANSWERED)
    peer = start(execute("        requests[0].set_release_flags(2)\n"))
    a, b = peer.answers(*TWO)
    assert (a.status, b.status) == (l.RESCHEDULED, l.OPEN)
    assert peer.part() == (TWO[1]["key"], "drop", None)
    assert peer.parts.empty()


def test_forgotten_requests(start):
    """A request that is neither answered nor held by anybody has failed at once."""
    peer = start(execute("        return None\n"))
    assert [a.status for a in peer.answers(*TWO)] == [l.OPEN, l.OPEN]
    assert {peer.part().key, peer.part().key} == {1 << 16, 1 << 16 | 1}


def test_what_requests_say(start):
    peer = start(execute("""        r = requests[0]
        said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()),
                sorted(r.requested_output_names()), r.trace().get_context(), r.is_cancelled(),
                [[t.name(), t.shape(), t.triton_dtype(), t.is_cpu(), str(t.as_numpy().dtype), t.as_numpy().flags.writeable] for t in r.inputs()]]
        return [out(r, np.array([json.dumps(said)], object))]
"""))
    asked = {"inputs": {"A": np.zeros((2, 0), np.int8), "B": np.array([b"x"], object)}, "outputs": ("OUT", "Z")}

    def said(**kwargs):
        answer, = peer.answers({**asked, **kwargs})
        return json.loads(answer.outputs["OUT"][0])

    tensors = [["A", [2, 0], 6, True, "int8", True], ["B", [1], 13, True, "object", True]]
    assert said() == ["", 0, 0, 0, {}, ["OUT", "Z"], None, False, tensors]
    assert said(id="i", correlation=7, flags=3, timeout=9, parameters='{"p": 1.5}', trace='{"t": "c"}') == \
        ["i", 7, 3, 9, {"p": 1.5}, ["OUT", "Z"], '{"t": "c"}', False, tensors]
    assert said(correlation="text")[1] == "text"
    peer.cancel(5 << 16 | 3)
    assert said(key=5 << 16 | 3)[7] and not said(key=6 << 16 | 3)[7] and not said(key=5 << 16 | 5000)[7]


LIFE = """
    def initialize(self, args):
        self.args = args
        print("initialize", json.dumps(args))
    def execute(self, requests):
        return [None]
    def finalize(self):
        print("finalize", pb_utils.get_model_dir())
        raise RuntimeError("only logged")
    def is_ready(self):
        return True
"""


def test_life(start):
    peer = start(model(LIFE), raw=True)
    protocol, python, implementation, numpy = peer.result(l.HELLO)
    assert (protocol, implementation) == (1, "cpython") and python.startswith("3.") and numpy[:2] in ("1.", "2.")
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    assert peer.result(l.LOADED) == l.HAS_INITIALIZE | l.HAS_EXECUTE | l.HAS_FINALIZE | l.HAS_READY
    args = peer.args({"a": 1})
    peer.command(l.INITIALIZE, string(json.dumps(args)))
    peer.result(l.INITIALIZED)
    peer.ask_ready(9)
    assert peer.readiness.get(timeout=60) == (9, 1, "")
    peer.finalize()
    peer.close()
    lines = peer.output["stdout"].decode().splitlines()
    assert json.loads(lines[0].split(" ", 1)[1]) == args and lines[1] == f"finalize {peer.load['model_dir']}"
    assert "RuntimeError: only logged" in peer.output["stderr"].decode()


@pytest.mark.parametrize("source, want", [
    ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'\n\nAt:\n  1/model.py(1): <module>\n"),
    ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
    ("raise SystemExit(2)", "SystemExit: 2\n\nAt:\n  1/model.py(1): <module>\n"),
    ("def f(:", "SyntaxError: "),
])
def test_import_fails(start, source, want):
    peer = start(source, raw=True)
    peer.result(l.HELLO)
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    failed = peer.result(l.FAILED)
    assert failed.command == l.LOAD and failed.message.startswith(want)


@pytest.mark.parametrize("source, want", [
    (model("    def initialize(self, args):\n        raise ValueError('init boom')\n    def execute(self, r): pass\n"),
     "ValueError: init boom\n\nAt:\n  1/model.py(7): initialize\n"),
    (model("    pass\n"), "Python model 1/model.py does not implement `execute` method."),
])
def test_initialize_fails(start, source, want):
    peer = start(source, raw=True)
    peer.result(l.HELLO)
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    peer.result(l.LOADED)
    peer.command(l.INITIALIZE, string(json.dumps(peer.args())))
    assert peer.result(l.FAILED).message == want


def test_several_files(start, tmp_path):
    """Helpers beside model.py, in the model's folder, and relative ones; a model's runner.py is its own."""
    folder = tmp_path / "0" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "helper.py").write_text("X = 1\n")
    (folder / "1" / "runner.py").write_text("Y = 2\n")
    (folder / "shared.py").write_text("Z = 3\n")
    peer = start(execute("        from . import helper as h\n        import helper, runner, shared\n"
                         "        return [out(0, [helper.X, h.X, runner.Y, shared.Z])]\n"))
    answer, = peer.answers(ONE)
    assert answer.outputs["OUT"].tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("ready, want", [
    ("return False", (0, "")), ("return 1", (0, "is_ready() must return a boolean value")),
    ("raise ValueError('x')", (0, "ValueError: x\n\nAt:\n  1/model.py(8): is_ready\n")),
])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_is_ready(start, ready, want, kind):
    peer = start(model(f"    def execute(self, requests): pass\n    {kind} is_ready(self):\n        {ready}\n"))
    for n in (1, 2):
        peer.ask_ready(n)
        assert peer.readiness.get(timeout=60) == (n,) + want


def test_complete(start):
    source = model("""    @staticmethod
    def auto_complete_config(c):
        c.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        c.set_max_batch_size(4)
        c.set_dynamic_batching()
        return c
    def execute(self, requests): pass
""")
    peer = start(source, raw=True)
    peer.result(l.HELLO)
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    assert peer.result(l.LOADED) & l.HAS_COMPLETE
    config = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    peer.command(l.COMPLETE, string(json.dumps(config)))
    assert peer.result(l.COMPLETED) == {**config, "max_batch_size": 4, "dynamic_batching": {},
                                        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}]}
    peer.command(l.COMPLETE, string(json.dumps({**config, "max_batch_size": 8})))
    assert peer.result(l.FAILED).message.startswith("ValueError: configuration specified max_batch_size 8, but in auto-complete-config "
                                                    "function for model 'm' specified max_batch_size 4\n\nAt:\n  1/model.py(")


def test_complete_returns_nothing(start):
    peer = start(model("    @staticmethod\n    def auto_complete_config(c): pass\n    def execute(self, r): pass\n"), raw=True)
    peer.result(l.HELLO)
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    peer.result(l.LOADED)
    peer.command(l.COMPLETE, string('{"name": "m"}'))
    assert peer.result(l.FAILED).message == "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."


def test_several_instances(start):
    """Two channels in one process: one import, an object for each, batches at a time."""
    peer = start(model("""    def initialize(self, args):
        self.name = args["model_instance_name"]
    def execute(self, requests):
        barrier.wait(60)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([id(sys.modules["1.model"]), count[0]]))])]
""", "count = [0]\ncount[0] += 1\nbarrier = threading.Barrier(2)\n"), channels=2)
    peer.execute(ONE, channel=0)
    peer.execute(ONE, channel=1)
    a, b = (peer.result(l.RESULT, c)[2][0].outputs["OUT"].tolist() for c in (0, 1))
    assert a == b and a[1] == 1
    peer.finalize()


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("channel", [0, 1])
def test_nonsense(start, channel, kind):
    """A frame that can't be read ends the process, whichever of its channels it came on."""
    peer = start(execute("        return [None]\n", kind), channels=2)
    peer.command(l.EXECUTE, b"\xff" * 20, channel=channel)
    assert peer.process.wait(60) == 1
    peer.close()
    assert b"Traceback" in peer.output["stderr"]


def test_arguments(start):
    """A model finds no arguments, as in Triton: unittest.main reads them."""
    peer = start(execute("        print(json.dumps(sys.argv))\n        return [None]\n"))
    peer.answers(ONE)
    peer.finalize()
    peer.close()
    assert peer.output["stdout"] == b'[""]\n'


def test_output(start):
    """Lines of stdout leave whole, whatever the locale."""
    peer = start(execute("        print('a', 'ä', end='!\\n')\n        return [None]\n"), environment={"LC_ALL": "C"})
    peer.answers(ONE)
    peer.finalize()
    peer.close()
    assert peer.output["stdout"] == "a ä!\n".encode()


def test_logger(start):
    source = execute("""        pb_utils.Logger.log("plain")
        pb_utils.Logger.log_info("info")
        pb_utils.Logger.log_warn("warn")
        pb_utils.Logger.log_error("error")
        pb_utils.Logger.log_verbose("verbose")
        return [None]
""")
    peer = start(source)
    peer.answers(ONE)
    assert peer.logs == []
    peer.levels(7)
    peer.answers(ONE)
    peer.finalize()
    file = peer.load["model_file"]
    assert peer.logs == [(4, file, 10, "plain"), (4, file, 11, "info"), (2, file, 12, "warn"), (1, file, 13, "error")]


def test_long_line(start):
    peer = start(execute("        pb_utils.Logger.log('\U0001f642' * 1000000)\n        return [None]\n"))
    peer.refuse_need = "memory is full"
    peer.levels(15)
    assert peer.answers(ONE)[0].status == l.OPEN
    assert peer.logs[0][3] == "\U0001f642" * 30000


def test_logging(start):
    """PYTHON_LOGGING: Python's own logging goes to the server's log."""
    peer = start(execute("        import logging\n        logging.getLogger('x').warning('w %d', 1)\n        return [None]\n"), raw=True,
                 options={"PYTHON_LOGGING": "yes"})
    peer.levels(15)
    peer.start()
    peer.answers(ONE)
    peer.finalize()
    assert (2, peer.load["model_file"], 11, "x: w 1") in peer.logs
