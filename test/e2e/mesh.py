"""Gateways behind a real Envoy that a real control plane drives, as processes on ephemeral ports of the loopback address.

    def test_something(mesh):
        m = mesh(gateways=2)
        m.http                       # "127.0.0.1:PORT" of Envoy: HTTP/1.1, HTTP/2 and gRPC on one port
        m.gateways[0].http, .grpc    # straight to a gateway (harness.Server)
        m.change(routes=[...])       # writes the topology again; the control plane takes it by itself
        m.admin("/stats?filter=...") # Envoy's admin interface
        m.settled("http/default", healthy=2)   # waits until Envoy finds so many gateways of a cluster healthy

mesh() returns when Envoy sends calls to all gateways. Options:
    gateways       how many, or a list of dicts: {name, group, zone, weight, flags, repositories}
    repositories   of all gateways that don't name their own
    flags          of all gateways, further to their own
    topology       dict that is merged into the topology (routes, services, upstream, listeners[0] by `listener`)
    listener       dict that is merged into the one listener (tls, access_log, ...)
    inside         True: the control plane runs in the first gateway (--xds-port), which takes the same topology file
    delta          True: Envoy speaks the delta protocol
    zone           Envoy's zone
    xds_flags      further flags of `sluice xds`
    bootstrap      further flags of `sluice xds bootstrap`
    scheme         "https" when the gateways' HTTP ports speak TLS
    program        run in place of bin/sluice for gateways
    wait           False: do not wait for healthy gateways
Everything that was started is ended by its process id after the test; when a test fails the ends of all logs are shown.
Access log lines: m.calls(), dicts. Processes: m.envoy, m.plane (subprocess.Popen), m.gateways[i].
"""
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import pytest

import harness

ENVOY = pathlib.Path(os.environ.get("SLUICE_ENVOY") or harness.ROOT / ".cache" / "envoy" / "envoy")


def missing():
    """Why there is no mesh here; "" when there can be one."""
    return harness.missing() or ("" if ENVOY.exists() else f"{ENVOY.name} is not there: make envoy")


class Mesh:
    def __init__(self, gateways=2, repositories=(harness.DEMO,), flags=(), topology=None, listener=None, inside=False, delta=False,
                 zone="", xds_flags=(), bootstrap=(), scheme="http", program=None, wait=True):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-mesh-")
        self.path = pathlib.Path(self.folder.name)
        self.gateways, self.plane, self.envoy = [], None, None
        self.repositories, self.flags, self.inside, self.delta, self.zone = repositories, tuple(flags), inside, delta, zone
        self.xds_flags, self.bootstrap, self.scheme, self.program = tuple(xds_flags), tuple(bootstrap), scheme, program
        self.file = self.path / "topology.yaml"
        self.access = self.path / "access.log"
        self.topology = {"listeners": [{"name": "mesh", "address": "127.0.0.1", "port": 0, "access_log": str(self.access),
                                        **(listener or {})}],
                         "gateways": [], "upstream": {"health_interval": "200ms"}}
        for key, value in (topology or {}).items():
            self.topology[key] = {**self.topology[key], **value} if isinstance(self.topology.get(key), dict) else value
        try:
            self.begin(gateways)
            if wait:
                self.listening()
                self.healthy()
        except BaseException:
            self.show()
            self.close()
            raise

    def begin(self, gateways):
        wanted = [{} for _ in range(gateways)] if isinstance(gateways, int) else gateways
        if self.inside:
            self.file.write_text(json.dumps({k: v for k, v in self.topology.items() if k != "gateways"}))
            wanted[0] = {"name": "gateway-0", **wanted[0], "flags": [
                *wanted[0].get("flags", ()), "--xds-port=0", f"--xds-config={self.file}", "--xds-name=gateway-0"]}
        for g in wanted:
            self.add(**g)
        if not self.inside:
            self.write()
            self.start_plane()
        else:
            self.xds = f"127.0.0.1:{self.gateways[0].ports['xds']}"
            self.write()
        self.start_envoy()

    def add(self, name=None, flags=(), repositories=None, ready=True, **entry):
        """Starts one more gateway and puts it into the topology, which write() tells the control plane of."""
        name = name or f"gateway-{len(self.gateways)}"
        server = harness.Server(repositories=repositories or self.repositories, flags=[*self.flags, *flags], ready=ready, scheme=self.scheme,
                                program=self.program)
        server.name = name
        self.gateways.append(server)
        self.topology["gateways"].append({"name": name, "http": server.http, "grpc": server.grpc, **entry})
        return server

    def write(self):
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.topology))
        part.replace(self.file)

    def change(self, **members):
        """Puts members into the topology and tells the control plane."""
        self.topology.update(members)
        self.write()

    def start_plane(self, port=0):
        """Starts `sluice xds`; with the port of one that has ended, in its place."""
        ports = self.path / "xds.json"
        ports.unlink(missing_ok=True)
        with open(self.path / "xds.log", "a") as log:
            self.plane = subprocess.Popen(
                [str(harness.BINARY), "xds", f"--config={self.file}", f"--xds-port={port}", f"--port-file={ports}", "--interval=100ms",
                 "--grace=1s", *self.xds_flags], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        harness.wait_for(lambda: self.plane.poll() is not None or ports.exists(), 10, "the control plane's port")
        assert self.plane.poll() is None, f"sluice xds ended:\n{self.log('xds')[-2000:]}"
        self.xds = f"127.0.0.1:{json.loads(ports.read_text())['xds']}"

    def start_envoy(self):
        bootstrap = self.path / "bootstrap.yaml"
        command = [str(harness.BINARY), "xds", "bootstrap", f"--xds={self.xds}", "--admin=127.0.0.1:0"]
        command += self.bootstrap
        command += ["--delta"] if self.delta else []
        command += [f"--zone={self.zone}"] if self.zone else []
        bootstrap.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        admin = self.path / "admin"
        admin.unlink(missing_ok=True)
        with open(self.path / "envoy.log", "a") as log:
            self.envoy = subprocess.Popen(
                [str(ENVOY), "-c", str(bootstrap), "--concurrency", "1", "--disable-hot-restart", "--admin-address-path", str(admin),
                 "-l", "warning", "--file-flush-interval-msec", "100", "--drain-time-s", "1", "--parent-shutdown-time-s", "2"],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        harness.wait_for(lambda: self.envoy.poll() is not None or admin.exists() and admin.stat().st_size, 20, "Envoy's admin port")
        assert self.envoy.poll() is None, f"Envoy ended:\n{self.log('envoy')[-3000:]}"
        self.admin_address = admin.read_text().strip()

    def admin(self, path, method="GET"):
        request = urllib.request.Request(f"http://{self.admin_address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=10) as r:
            return r.read().decode()

    def listening(self, seconds=15):
        """Waits until Envoy listens, and learns where."""
        def port():
            assert self.envoy.poll() is None, f"Envoy ended:\n{self.log('envoy')[-3000:]}"
            for l in json.loads(self.admin("/listeners?format=json")).get("listener_statuses", []):
                if l["name"] == "mesh":
                    at = l["local_address"]
                    return at["socket_address"]["port_value"] if "socket_address" in at else at["pipe"]["path"]
        def taken(at):
            """Envoy tells of a port that it has bound, a moment before it listens there."""
            if isinstance(at, int):
                try:
                    socket.create_connection(("127.0.0.1", at), 5).close()
                except ConnectionRefusedError:
                    return None
            return at
        at = harness.wait_for(lambda: taken(port()), seconds, "Envoy's listener")
        self.http = f"127.0.0.1:{at}" if isinstance(at, int) else f"unix:{at}"
        self.grpc = self.http

    def hosts(self, cluster):
        """{address: flags} of a cluster in Envoy; flags "healthy" or why not."""
        out = {}
        for line in self.admin("/clusters").splitlines():
            parts = line.split("::")
            if len(parts) == 4 and parts[0] == cluster and parts[2] == "health_flags":
                out[parts[1]] = parts[3]
        return out

    def settled(self, cluster, healthy, seconds=15):
        harness.wait_for(lambda: sum(f == "healthy" for f in self.hosts(cluster).values()) == healthy, seconds,
                         f"{healthy} healthy in {cluster}")

    def healthy(self, seconds=15):
        """Waits until Envoy finds all gateways of the topology healthy."""
        for group in {g.get("group", "default") for g in self.topology["gateways"]}:
            for protocol in ("http", "grpc"):
                self.settled(f"{protocol}/{group}", sum(g.get("group", "default") == group for g in self.topology["gateways"]), seconds)

    def replace(self, i):
        """Starts gateway i, which has ended, at its old ports."""
        old = self.gateways[i]
        self.gateways[i] = harness.Server(repositories=self.repositories, flags=self.flags, scheme=self.scheme, place=old, program=self.program)
        self.gateways[i].name = old.name

    def stat(self, name):
        """One counter or gauge of Envoy."""
        for line in self.admin(f"/stats?filter=^{name}$").splitlines():
            return int(line.rsplit(": ", 1)[1])
        return 0

    def ask(self, path, body=None, headers=None, method=None, timeout=20):
        """(status, headers, bytes) of one HTTP exchange through Envoy."""
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.headers, e.read()

    def log(self, name):
        path = self.path / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def calls(self, seconds=3, where=lambda line: True, least=0):
        """Envoy's access log, which it writes every second at the latest."""
        def lines():
            found = [json.loads(l) for l in self.access.read_text().splitlines()] if self.access.exists() else []
            found = [l for l in found if where(l)]
            return found if len(found) >= least else None
        return harness.wait_for(lines, seconds, f"{least} lines in the access log") if least else lines()

    def connection(self, timeout=20):
        """A connection to Envoy of one's own, for many calls."""
        return http.client.HTTPConnection(self.http, timeout=timeout)

    def logs(self):
        """The logs of all processes, by their names."""
        return {"xds": self.log("xds"), "envoy": self.log("envoy"), **{g.name: g.log() for g in self.gateways}}

    def show(self):
        for name, text in self.logs().items():
            sys.stderr.write(f"--- {name}\n{text[-2500:]}\n")

    def close(self):
        for p in (self.envoy, self.plane):
            if p is not None and p.poll() is None:
                p.kill()
                p.wait(10)
        for g in self.gateways:
            g.kill()


class Load:
    """Calls through Envoy from threads until the block ends: path and body over HTTP/1.1, each thread with a connection that stays.
    Afterwards .done counts, .answers holds what pick() made of each answer's (status, headers, body), .failed those that were not 200."""

    def __init__(self, mesh, path, body, threads=4, headers=None, pick=lambda status, headers, body: status):
        self.mesh, self.path, self.body, self.headers, self.pick = mesh, path, body, headers or {}, pick
        self.answers, self.failed, self.stopping = [], [], threading.Event()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(threads)]

    def run(self):
        connection = self.mesh.connection()
        while not self.stopping.is_set():
            try:
                connection.request("POST", self.path, self.body, self.headers)
                r = connection.getresponse()
                text = r.read()
                if r.status != 200:
                    self.failed.append((r.status, r.headers.get("x-sluice-reason"), text[:200]))
                self.answers.append(self.pick(r.status, r.headers, text))
            except (OSError, http.client.HTTPException) as e:
                self.failed.append(e)
                connection.close()
        connection.close()

    @property
    def done(self):
        return len(self.answers)

    def wait(self, more, seconds=20):
        """Waits for so many further answers."""
        least = self.done + more
        harness.wait_for(lambda: self.done >= least, seconds, f"{more} further answers (failed: {self.failed[:3]})")

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for t in self.threads:
            t.join(30)
        assert not any(t.is_alive() for t in self.threads), "a call has not ended"


@pytest.fixture
def mesh():
    """Makes meshes of the test's own; see the top of this file."""
    if reason := missing():
        pytest.skip(reason)
    made = []

    def make(**options):
        made.append(Mesh(**options))
        return made[-1]

    yield make
    for m in made:
        m.show()  # pytest shows it when the test has failed
        m.close()
