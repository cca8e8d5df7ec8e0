"""The model's module: imported once for a process, whatever its number of instances."""
import functools
import importlib.util
import os
import sys
import threading
import types

from . import debug
from .errors import RUNNER
from .layout import HAS_COMPLETE, HAS_EXECUTE, HAS_FINALIZE, HAS_INITIALIZE, HAS_READY, IS_ASYNC


class Model:
    """A model's module and what LOAD said of it."""

    def __init__(self, load):
        """load: the object of a LOAD frame."""
        self.load = load
        self.name, self.version, self.folder = load["name"], load["version"], load["model_dir"]
        self.decoupled = bool(load.get("decoupled"))
        self.async_batches = max(int(load.get("async_batches") or 1), 1)
        self.options = load.get("options") or {}
        self.root = root(load)
        self.kind = None  # TritonPythonModel

    def import_module(self):
        """Imports the module and finds its class."""
        # The runner's own folder is the last: a model's helper may have the name of a file there.
        sys.path[:] = [p for p in sys.path if p != RUNNER]
        sys.path.extend([p for p in self.load.get("path") or () if p not in sys.path] + [RUNNER])
        module = import_file(self.load["module"], self.load["model_file"])
        self.kind = module.TritonPythonModel

    def hooks(self):
        """The bits of LOADED."""
        bits = 0
        for name, bit in (("auto_complete_config", HAS_COMPLETE), ("initialize", HAS_INITIALIZE), ("execute", HAS_EXECUTE),
                          ("finalize", HAS_FINALIZE), ("is_ready", HAS_READY)):
            if hasattr(self.kind, name):
                bits |= bit
        if is_coroutine_function(getattr(self.kind, "execute", None)):
            bits |= IS_ASYNC
        return bits


def import_file(name, path):
    """Imports a file as a module of that name. "1.model" is module model of package 1, which is the file's folder."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Python model file not found in '{path}'")
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        package = types.ModuleType(parent)
        package.__path__ = [os.path.dirname(path)]
        sys.modules[parent] = package
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def is_coroutine_function(f):
    while isinstance(f, functools.partial):
        f = f.func
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    return bool(code is not None and code.co_flags & 0x80)  # inspect.CO_COROUTINE, without importing inspect


_lock = threading.Lock()
_loaded = None


def loaded(load, install_logging):
    """The process's model; whoever asks first imports it, the others wait for that. What the import raised is raised to each."""
    global _loaded
    with _lock:
        if _loaded is None:
            model = Model(load)
            try:
                if model.options.get("PYTHON_LOGGING") in ("yes", "true", "1"):
                    install_logging()
                debug.listen(load)
                model.import_module()
                _loaded = model, None
            except BaseException as e:  # SystemExit of a module's body too
                _loaded = model, e
        model, error = _loaded
    if error is not None:
        raise error
    return model


def folder():
    """The version's folder of the process's model."""
    return _loaded[0].folder if _loaded else ""


def root(load):
    """The model's folder, of a LOAD frame's object: files in errors are relative to it."""
    path = load.get("path") or ()
    return path[1] if len(path) > 1 else os.path.dirname(load["model_dir"].rstrip("/"))
