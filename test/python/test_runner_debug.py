"""The parameter DEBUG, with a package that stands in for debugpy, and with debugpy where it is there."""
import json
import socket

import pytest
from model_sources import ONE, execute
from peer import string
from sluice_runner import layout as l

STAND_IN = """
def listen(address):
    print("listen", *address, flush=True)
def wait_for_client():
    print("waited", flush=True)
"""
MODEL = execute("        return [out(0, [1.0])]\n") + "\nprint('imported', flush=True)\n"


def load(start, folder, wanted, instance="m_0_0"):
    peer = start(MODEL, raw=True, environment={"PYTHONPATH": str(folder)}, options={"DEBUG": wanted}, instance=instance)
    peer.result(l.HELLO)
    peer.command(l.LOAD, string(json.dumps(peer.load)))
    return peer


@pytest.mark.parametrize("wanted, instance, lines", [
    ("5678", "m_0_0", ["listen 127.0.0.1 5678", "debugpy listens at 127.0.0.1:5678", "imported"]),
    ("wait:5000", "m_0_3", ["listen 127.0.0.1 5003", "debugpy listens at 127.0.0.1:5003", "waited", "imported"]),
])
def test_debug(start, tmp_path, wanted, instance, lines):
    """It listens before the model is imported, each instance at a port of its own."""
    (tmp_path / "debugpy.py").write_text(STAND_IN)
    peer = load(start, tmp_path, wanted, instance)
    peer.result(l.LOADED)
    peer.close()
    assert peer.output["stdout"].decode().splitlines() == lines


def test_without_debugpy(start, tmp_path):
    (tmp_path / "debugpy.py").write_text("raise ImportError('none here')")
    failed = load(start, tmp_path, "5678").result(l.FAILED)
    assert failed.message == ("Python model 'm' has the parameter DEBUG, and its interpreter can't import debugpy (none here): "
                              "pip install debugpy")


def test_real(start, tmp_path):
    """A debugger can connect, and the model serves."""
    pytest.importorskip("debugpy")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    peer = load(start, tmp_path, str(port))
    peer.result(l.LOADED)
    socket.create_connection(("127.0.0.1", port), 60).close()
    peer.command(l.INITIALIZE, string(json.dumps(peer.args())))
    peer.result(l.INITIALIZED)
    assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [1.0]
