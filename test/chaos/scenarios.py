"""The scenarios of gateways, workers, control plane and Redis, in the order in which they run; see chaos.py for what they are
given."""
import os
import random
import signal

import harness
import models
from chaos import scenario


@scenario("gateways restarted")
def restarted(t):
    """SIGTERM to one gateway after the other, each started again: no call fails."""
    for _ in t.rounds():
        for i, g in enumerate(t.mesh.gateways):
            assert g.stop() == 0, g.log()[-2000:]
            t.mesh.replace(i)
            t.fault("restarts")
            t.mesh.healthy()
            t.more(200)


@scenario("a gateway killed", callers={"callers": 24})
def gateway_killed(t):
    """kill -9: what the gateway had in flight may fail, and no more."""
    for _ in t.rounds():
        i = random.randrange(len(t.mesh.gateways))
        t.mesh.gateways[i].kill()
        t.killed()
        t.fault("kill -9")
        t.more(200)
        t.mesh.replace(i)
        t.mesh.healthy()
        t.more(200)


def kill_workers(t, gateways):
    """kill -9 of gateways' workers at one time; waits until they are there again."""
    old = {g: g.workers()[0] for g in gateways}
    for worker in old.values():
        os.kill(worker, signal.SIGKILL)
    t.fault("kill -9", len(old))
    for g, worker in old.items():
        harness.wait_for(lambda: set(g.workers()) - {worker} and g.status("/v2/health/ready") == 200, 15, "a worker again")
    t.more(200)
    t.mesh.healthy()


@scenario("a worker killed")
def worker_killed(t):
    for _ in t.rounds():
        for g in t.mesh.gateways:
            kill_workers(t, [g])


@scenario("all workers killed at once")
def workers_killed(t):
    for _ in t.rounds():
        kill_workers(t, t.mesh.gateways)


@scenario("control plane killed")
def plane_killed(t):
    """Envoy keeps what it knows, and the next control plane takes over without a change of it."""
    for _ in t.rounds():
        known = [t.mesh.stat(f"{n}_manager.{n}_modified") for n in ("listener", "cluster")]
        t.mesh.plane.kill()
        t.mesh.plane.wait(10)
        t.fault("kill -9")
        t.for_seconds(1)
        t.mesh.start_plane(port=int(t.mesh.xds.rsplit(":", 1)[1]))
        harness.wait_for(lambda: t.mesh.stat("control_plane.connected_state") == 1, 20, "Envoy has a control plane again")
        t.for_seconds(0.5)
        now = [t.mesh.stat(f"{n}_manager.{n}_modified") for n in ("listener", "cluster")]
        t.expect(now == known, "a restarted control plane changed what Envoy had")


@scenario("control plane frozen")
def plane_frozen(t):
    for _ in t.rounds():
        with t.frozen(t.mesh.plane):
            t.fault("SIGSTOP")
            t.for_seconds(2)
        t.more(200)


def another(n, third):
    """The n'th topology: routes, weights, policies and gateways that come and go. Models and versions stay the same."""
    which = [{"version": "1", "weight": 1 + n % 9}, {"version": "2", "weight": 9 - n % 9}]
    routes = [{"model": "which", "targets": which}, {"model": "which", "version": "1", "targets": [{"version": "1"}]},
              {"model": "alias", "targets": [{"model": "echo"}]}, {"model": "echo", "timeout": f"{20 + n}s", "targets": [{"model": "echo"}]}]
    gateways = [dict(g) for g in third["before"]]
    if n % 5 == 4:
        gateways[n % 2]["draining"] = True
    elif n % 4 == 3:
        del gateways[n % 2]
    if n % 3 == 1:
        gateways.append(third["entry"])
    if n % 7 == 6:
        gateways[0]["weight"] = 3
    upstream = {**third["upstream"], "balance": ["least_request", "round_robin"][n % 6 == 5]}
    return {"routes": routes[:2 + n % 3], "gateways": gateways, "upstream": upstream}


@scenario("control plane changed", share=3)
def plane_changed(t):
    """The topology is written again and again: routes, weights and gateways come and go."""
    t.callers.say("allow which 1001")
    before, upstream = list(t.mesh.topology["gateways"]), t.mesh.topology["upstream"]
    third = {"before": before, "upstream": upstream}
    extra = t.mesh.add()
    third["entry"] = t.mesh.topology["gateways"].pop()
    n = 0
    for _ in t.rounds():
        t.mesh.change(**another(n, third))
        t.fault("topologies")
        n += 1
        t.for_seconds(1.3 if n % 4 else 0.2)  # some are gone before they count
    t.mesh.change(routes=[], gateways=before, upstream=upstream)
    t.mesh.healthy()
    t.for_seconds(1)
    t.mesh.gateways.remove(extra)
    assert extra.stop() == 0, extra.log()[-2000:]


def alone(t):
    return all('sluice_cache_breaker_open{level="redis"} 1' in m and "sluice_limit_redis_up 0" in m
               for m in (g.metrics_text() for g in t.mesh.gateways))


def together(t):
    return all('sluice_cache_breaker_open{level="redis"} 0' in m and "sluice_limit_redis_up 1" in m
               for m in (g.metrics_text() for g in t.mesh.gateways))


@scenario("Redis killed")
def redis_killed(t):
    """Answers and limits of both gateways are in it: without it they are computed, and limited alone."""
    for _ in t.rounds():
        t.redis.kill()
        t.fault("kill -9")
        harness.wait_for(lambda: alone(t), 15, "both gateways do without Redis")
        t.more(500)
        t.redis.start()
        harness.wait_for(lambda: together(t), 20, "Redis is asked again")


@scenario("Redis frozen")
def redis_frozen(t):
    for _ in t.rounds():
        with t.frozen(t.redis.process):
            t.fault("SIGSTOP")
            harness.wait_for(lambda: alone(t), 15, "both gateways do without Redis")
            t.more(500)
        harness.wait_for(lambda: together(t), 20, "Redis is asked again")


@scenario("Redis filled with foreign keys")
def redis_filled(t):
    """What gateways keep there is replaced by other values and other types, and the rest of the memory is filled."""
    for _ in t.rounds():
        for i, key in enumerate(t.redis.call("KEYS", "*")):
            if i % 3 == 0:
                t.redis.call("SET", key, b"foreign")
            elif i % 3 == 1:
                t.redis.call("DEL", key)
                t.redis.call("LPUSH", key, b"foreign")
            else:
                t.redis.call("SETRANGE", key, "7", b"\xff\xff\xff\xff")
            t.fault("keys of ours")
        t.more(300)
        n = 0
        while t.redis.call("SET", f"foreign:{n}", b"x" * 500_000) == b"OK":
            n += 1
        t.fault("foreign keys", n)
        t.more(300)
        t.redis.call("FLUSHALL")
        harness.wait_for(lambda: together(t), 30, "Redis is asked again")
        t.more(200)


class Polled:
    """Changes the models m0, m1, … and tells the callers what they may see."""

    def __init__(self, t):
        self.t, self.generation = t, 0
        self.allowed = {m: {t.repository.newest(m)} for m in models.POLLED}

    def change(self, name):
        """A version is added, changed or removed."""
        versions = self.t.repository.serves[name]
        self.generation += 1
        self.t.fault("changes")
        if len(versions) > 2 or len(versions) == 2 and random.random() < 0.3:
            kind = "remove"
        else:
            kind = random.choice(["add", "change"])
        number = max(versions) if kind == "change" else 1 + max(versions) % 8
        if kind == "remove":
            gone = random.choice(list(versions))
            left = max(v for v in versions if v != gone)
            self.allow(name, versions[left])
            self.t.repository.remove(name, gone)
        else:
            added = number * 1000 + self.generation % 1000
            self.allow(name, added if number >= max(versions) else versions[max(versions)])
            self.t.repository.put(name, number, added)

    def allow(self, name, number):
        self.allowed[name].add(number)
        self.t.callers.say(f"allow {name} {number}")

    def settle(self):
        """Waits until both gateways have what is there; calls from then on may see nothing else."""
        for name in models.POLLED:
            newest = self.t.repository.newest(name)
            models.wait_for(self.t.mesh.gateways, name, newest)
            for old in self.allowed[name] - {newest}:
                self.t.callers.say(f"forbid {name} {old}")
            self.allowed[name] = {newest}


@scenario("a polled repository changed", share=3, callers={"models": models.POLLED})
def repository_changed(t):
    """Versions are added, removed and changed: every answer is of a version that was there, and none of an older one."""
    polled = Polled(t)
    for _ in t.rounds():
        for name in models.POLLED * 2:
            polled.change(name)
        t.for_seconds(0.5)
        polled.settle()
        t.more(100)


@scenario("ensembles under reload", callers={"models": ["chain", "echo"]})
def ensembles(t):
    """The steps of an ensemble are loaded anew while it runs."""
    generation = 1  # that of the start
    for _ in t.rounds():
        generation += 1
        before = t.repository.chain()
        low, high = generation % 10, 10 * (generation % 7)
        for number in {low + t.repository.newest("high"), t.repository.newest("low") + high, low + high}:
            t.callers.say(f"allow chain {number}")
        seen = {before, low + t.repository.newest("high"), t.repository.newest("low") + high}
        t.repository.put("low", 1, low)
        t.repository.put("high", 1, high)
        t.fault("reloads", 2)
        models.wait_for(t.mesh.gateways, "chain", low + high)
        for number in seen - {low + high}:
            t.callers.say(f"forbid chain {number}")
        t.more(200)
