"""Files that are written empty, cut or slowly, and disks without room."""
import contextlib
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import threading
import time

import pytest

import harness
import models
from chaos import World, scenario

ONE = models.question(1)


class Guarded(World):
    """Callers show a key, and one model is limited to a call an hour. Gateways have their log, access log, traces and temporary
    files on a file system of a megabyte, each its own, where this process may make one."""
    callers = {"headers": {"x-api-key": "friend"}}

    def prepare(self):
        self.keys = self.path / "keys"
        self.keys.write_text(f"friend sha256:{hashlib.sha256(b'friend').hexdigest()}\n")
        self.flags = [f"--api-keys={self.keys}"]
        self.disk = self.path / "disk"
        self.small = shutil.which("mount") and not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
        if not self.small:
            return
        self.disk.mkdir()
        self.program = self.path / "sluice"
        self.program.write_text(f"""#!/bin/sh
if [ -z "$INSIDE" ]; then INSIDE=1 exec unshare --mount "$0" "$@"; fi
mount -t tmpfs -o size=1m tmpfs {self.disk} || exit 1
export TMPDIR={self.disk}
exec {harness.BINARY} "$@"
""")
        self.program.chmod(0o755)
        self.flags += [f"--log-file={self.disk}/log", f"--access-log={self.disk}/access.log", "--trace-config=level=TIMESTAMPS",
                       "--trace-config=rate=10", f"--trace-config=triton,file={self.disk}/trace.json"]

    def of(self, gateway):
        """The disk as the gateway sees it."""
        return pathlib.Path(f"/proc/{gateway.pid}/root{self.disk}")


def slowly(path, text):
    """Writes a file in place with a pause between its parts, shorter than the time after which a file counts."""
    part = max(1, len(text) // 6)
    with open(path, "w") as f:
        for at in range(0, len(text), part):
            f.write(text[at:at + part])
            f.flush()
            time.sleep(0.25)


def in_force(t):
    """Asks each gateway directly whether keys and limits count, and Envoy whether it knows its gateways."""
    for g in t.mesh.gateways:
        status = [g.ask(f"/v2/models/{m}/infer", ONE, {"x-api-key": key})[0] for m, key in
                  (("shut", "friend"), ("echo", "friend"), ("echo", "stranger"))]
        t.expect(status == [429, 200, 401], f"limited, known and unknown callers were answered with {status}")


@scenario("files written badly", world=Guarded)
def written_badly(t):
    """A file that is empty, cut or still being written changes nothing: none is refused that was not, none let through that was."""
    files = [t.mesh.file, t.world.limits, t.world.keys]
    good = [f.read_text() for f in files]
    t.mesh.gateways[0].ask("/v2/models/shut/infer", ONE, {"x-api-key": "friend"})  # the one of this hour
    try:
        for _ in t.rounds():
            for f, text in zip(files, good):
                f.write_text(text[:random.choice([0, len(text) // 3, len(text) // 2])])
                t.fault("bad files")
            t.for_seconds(1.4)  # they would count now
            in_force(t)
            writers = [threading.Thread(target=slowly, args=both) for both in zip(files, good)]
            for w in writers:
                w.start()
                t.fault("slow writes")
            for w in writers:
                w.join(10)
            t.for_seconds(0.3)
            in_force(t)
    finally:
        for f, text in zip(files, good):
            f.write_text(text)


def fill(disk):
    """Takes what room there is."""
    with contextlib.suppress(OSError), open(disk / "filler", "ab", buffering=0) as f:
        while f.write(b"x" * 512):
            pass


@scenario("disks full", world=Guarded)
def disks_full(t):
    """Neither logs nor traces can be written: calls are answered all the same, and lines come again when there is room."""
    if not t.world.small:
        pytest.skip("no mount namespaces here, for a small file system")
    for _ in t.rounds():
        disks = [t.world.of(g) for g in t.mesh.gateways]
        for disk in disks:
            fill(disk)
            t.fault("full disks")
        t.more(500)
        for disk in disks:
            (disk / "filler").unlink()
            for old in disk.glob("*.*"):
                os.truncate(old, 0)
        sizes = [(d / "access.log").stat().st_size for d in disks]
        harness.wait_for(lambda: all((d / "access.log").stat().st_size > s for d, s in zip(disks, sizes)), 15, "access logs again")
        t.more(100)
