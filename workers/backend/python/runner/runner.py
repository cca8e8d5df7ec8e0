"""Runs a Python model: the worker starts this with one argument, JSON that names inherited descriptors.
docs/0025-python-channel.md has what is said over them."""
import atexit
import json
import os
import signal
import sys
import threading
import traceback


def serve(server):
    """Serves a channel to its end. What goes wrong in the runner itself ends the process: the worker starts another."""
    try:
        server.run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main(argument):
    import faulthandler

    from sluice_runner import channel, commands, forks

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=False)
    # The worker ends this process; an interrupt of its terminal must not. A handler, other than SIG_IGN, stays here: programs that
    # the model starts do not inherit it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    servers = []
    for c in json.loads(argument)["channels"]:
        areas = {int(area): fd for area, fd in (c.get("areas") or {}).items()}
        servers.append(commands.Server(channel.Channel(c["memory"], c["exchange"], c["events"], areas, c["ready"])))
    for server in servers:
        channel.announce(server.channel)
    forks.watch()
    others = [threading.Thread(target=serve, args=(server,), name=f"instance-{i}") for i, server in enumerate(servers[1:], 1)]
    for thread in others:
        thread.start()
    serve(servers[0])
    for thread in others:
        thread.join()
    # Threads that a model has left behind are not waited for.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    import triton_python_backend_utils  # noqa: F401  before a model's folder could have one

    argument = sys.argv[1]
    sys.argv[:] = [""]  # as in Triton: models that read arguments find none
    main(argument)
