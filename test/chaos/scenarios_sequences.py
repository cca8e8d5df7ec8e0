"""Sequences where the endpoint picker places them: what a caller is told is right, or it is told to begin again."""
import random
import time

from chaos import World, scenario
from scenarios import kill_workers

# What callers of sequences are told: to begin again, or that nobody knows at the moment where the sequence lives.
REFUSED = r"^(503|Unavailable) sequence_(lost|unplaced)|must specify the START flag"


class Picked(World):
    """The control plane is the endpoint picker too."""
    callers = {"protocols": ("http", "grpc", "stream"), "models": ["echo"], "callers": 1, "sequences": "sum",
               "sequence_callers": 8}
    topology = {**World.topology, "services": {"picker": {}}}


class Hashed(Picked):
    """The ring of Envoy's own has a say beside the picker."""
    topology = {**Picked.topology, "upstream": {**World.topology["upstream"], "balance": "hash"}}


def calm(t):
    """Without a fault no sequence is refused."""
    for _ in t.rounds():
        t.more(500)


def killed(t):
    """The picker is away for a second, and begins anew."""
    for _ in t.rounds():
        t.mesh.plane.kill()
        t.mesh.plane.wait(10)
        t.fault("kill -9")
        t.for_seconds(1)
        t.mesh.start_plane(port=int(t.mesh.xds.rsplit(":", 1)[1]))
        t.calm()


def frozen(t):
    for _ in t.rounds():
        with t.frozen(t.mesh.plane):
            t.fault("SIGSTOP")
            t.for_seconds(2)
        t.calm()


def slow(t):
    """The picker runs for a twentieth of a second, and not for a quarter."""
    for _ in t.rounds():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with t.frozen(t.mesh.plane):
                time.sleep(0.25)
            time.sleep(0.05)
            t.fault("pauses")
        t.calm()


def gateway_killed(t):
    """What lived in the gateway is lost, and nothing else is refused."""
    for _ in t.rounds():
        i = random.randrange(len(t.mesh.gateways))
        t.mesh.gateways[i].kill()
        t.killed()
        t.fault("kill -9")
        t.calm()
        t.mesh.replace(i)
        t.mesh.healthy()
        t.calm()


def worker_killed(t):
    """The gateway stays, and says which sequences were lost."""
    for _ in t.rounds():
        for g in t.mesh.gateways:
            kill_workers(t, [g])
            t.calm()


for world, name in ((Picked, ""), (Hashed, " (hash)")):
    scenario(f"sequences: picker there{name}", world=world, short=world is Picked)(calm)
    scenario(f"sequences: picker killed{name}", world=world, refused=REFUSED)(killed)
    scenario(f"sequences: picker frozen{name}", world=world, refused=REFUSED, short=world is Picked)(frozen)
    scenario(f"sequences: picker slow{name}", world=world, refused=REFUSED, short=world is Picked)(slow)
scenario("sequences: a gateway killed", world=Picked, refused=REFUSED)(gateway_killed)
scenario("sequences: a worker killed", world=Picked, refused=REFUSED)(worker_killed)
