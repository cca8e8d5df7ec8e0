"""The golden vectors of the worker protocol, read by what is not Go: the example's messages, and the byte table's document."""
import json
import subprocess
import sys

import pytest

import byte_table
import harness
from foreign_worker import FOLDER

GOLDEN = harness.ROOT / "workers/wire/testdata/golden"


def test_golden_vectors():
    """The messages of workers/wire/testdata/golden mean to the Python code what they mean to Go: their JSON is read into the generated
    classes and written again the same."""
    code = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
from google.protobuf import json_format
import protocol as w
n = 0
for f in sorted(pathlib.Path(sys.argv[2]).glob("*.json")):
    kind = {"batch": w.Batch, "result": w.Result, "call": w.Call, "answer": w.CallAnswer}[f.stem.split("_")[0]]
    m = kind.FromString(json_format.Parse(f.read_text(), kind()).SerializeToString())
    assert json_format.MessageToDict(m, preserving_proto_field_name=True) == json.loads(f.read_text()), f.name
    n += 1
print(n)
"""
    out = subprocess.run([sys.executable, "-c", code, str(FOLDER), str(GOLDEN)], check=True,
                         capture_output=True, text=True).stdout
    assert int(out) >= 9


@pytest.mark.parametrize("name", sorted(f.stem for f in GOLDEN.glob("*.json")))
def test_golden_tables(name):
    """The byte table says what the message says, read by the document alone."""
    want = json.loads((GOLDEN / f"{name}.json").read_text())
    if name.startswith("batch"):
        want.pop("handle", None), want.pop("instance", None)  # which a mailbox stands for
    table = bytes.fromhex("".join((GOLDEN / f"{name}.table").read_text().split()))
    assert byte_table.read(name, table) == byte_table.plain(want)
