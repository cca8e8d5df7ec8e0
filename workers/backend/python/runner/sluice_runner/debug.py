"""The parameter DEBUG: debugpy, of the model's environment, listens on the loopback address for a debugger."""
from .errors import TritonModelException

WAIT = "wait:"


def listen(load):
    """Of a LOAD frame's object, before the model is imported. The instance's number is added to the port, so that each process has one."""
    wanted = load.get("options", {}).get("DEBUG")
    if not wanted:
        return
    try:
        import debugpy
    except ImportError as e:
        raise TritonModelException(f"Python model '{load['name']}' has the parameter DEBUG, and its interpreter can't import debugpy ({e}): "
                                   "pip install debugpy") from None
    number = load.get("instance", "").rpartition("_")[2]
    port = int(wanted[len(WAIT):] if wanted.startswith(WAIT) else wanted) + (int(number) if number.isdecimal() else 0)
    debugpy.listen(("127.0.0.1", port))
    print(f"debugpy listens at 127.0.0.1:{port}", flush=True)
    if wanted.startswith(WAIT):
        debugpy.wait_for_client()
