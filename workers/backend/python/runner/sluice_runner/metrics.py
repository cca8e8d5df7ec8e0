"""Metrics of models: MetricFamily, Metric. What contradicts a metric's kind is refused here; updates are sent without an answer."""
import enum
import json
import os
import struct
import threading

from . import control, wire
from .channel import current
from .errors import TritonModelException, instance, text
from .layout import METRIC

SET, ADD, OBSERVE, DECLARE, DELETE = range(5)


class MetricKind(enum.Enum):
    """Kind of a metric. Source: MetricKind of Triton's Python backend."""
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __int__(self):
        return self.value

    __index__ = __int__


_families = {}  # name -> [kind, how many there are, the first one's description], of this process
_lock = threading.Lock()


def _update(kind, change, family, labels, value=0.0, help="", buckets=()):
    channel = current()
    if channel is None:
        return
    write = channel.events.write_soon if change == DELETE else channel.send  # finalizers delete
    write(METRIC, 0, b"\1\0" + bytes((kind.value, change)) + wire.string(family) + wire.string(help) + wire.string(labels)
          + len(buckets).to_bytes(2, "little") + struct.pack(f"<{len(buckets) + 1}d", *buckets, value))


class MetricFamily:
    """A named family of metrics of one kind, for the server's metrics page."""
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name, description, kind):
        self._name = text(name, "name")
        description = text(description, "description")
        self._kind = instance(kind, MetricKind, "kind")
        with _lock:
            known = _families.setdefault(self._name, [self._kind, 0, description])
            if known[0] is not self._kind:
                raise TritonModelException(f"Error when creating MetricFamily: metric family '{self._name}' is there, of kind "
                                           f"{known[0].name}")
            known[1] += 1
            self._description = known[2]
        self._process = os.getpid()
        self._metrics = {}  # labels -> Metric; they end with their family, as in Triton
        _update(self._kind, DECLARE, self._name, "", help=self._description)

    def Metric(self, labels=None, buckets=None):
        """A metric of the family. labels: dict of str to str; buckets: ascending upper bounds, for a histogram alone."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None:
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            if self._kind is not MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        for key, value in (labels or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TritonModelException(f"Error when creating Metric: labels are str to str, not {key!r} to {value!r}")
        buckets = [_float(b, "buckets") for b in buckets or ()]
        if any(a >= b for a, b in zip(buckets, buckets[1:])):
            raise TritonModelException(f"Error when creating Metric: buckets must ascend, not {buckets}")
        labels = json.dumps(labels, sort_keys=True) if labels else "{}"
        metric = self._metrics.get(labels)
        if metric is None:
            metric = self._metrics[labels] = object.__new__(Metric)
            metric._name, metric._kind, metric._labels, metric._cleared = self._name, self._kind, labels, False
            _update(self._kind, DECLARE, self._name, labels, help=self._description, buckets=buckets)
        return metric

    def __del__(self):
        metrics = getattr(self, "_metrics", None)
        if metrics is None or self._process != os.getpid():  # refused, or another process's
            return
        for metric in metrics.values():
            metric._cleared = True
            _update(self._kind, DELETE, self._name, metric._labels)
        _update(self._kind, DELETE, self._name, "")
        known = _families[self._name]  # no lock: a finalizer may run in the thread that holds it
        known[1] -= 1
        if not known[1]:
            _families.pop(self._name, None)


class Metric:
    """One metric of a family: a counter, a gauge or a histogram with its labels. Instances share those of the same labels."""

    def __init__(self):
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    def increment(self, value):
        """Adds to a counter, which never goes down, or to a gauge."""
        value = _float(value, "value")
        why = self._refusal("Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if not why and self._kind is MetricKind.COUNTER and value < 0:
            why = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
        self._change(ADD, value, "Failed to increment metric value: ", why)

    def set(self, value):
        """Sets a gauge."""
        self._change(SET, _float(value, "value"), "Failed to set metric value: ", self._refusal("Set", MetricKind.GAUGE))

    def observe(self, value):
        """Counts a value in a histogram."""
        why = self._refusal("Observe", MetricKind.HISTOGRAM)
        self._change(OBSERVE, _float(value, "value"), "Failed to observe metric value: ", why)

    def value(self):
        """The value of a counter or a gauge, all instances together."""
        prefix = "Failed to get metric value: "
        why = self._refusal("Value", MetricKind.COUNTER, MetricKind.GAUGE)
        if why:
            raise TritonModelException(prefix + why)
        channel = current()
        if channel is None:
            raise TritonModelException(prefix + "this process has no channel to the server")
        try:
            return control.metric_value(channel, self._name, self._labels)
        except TritonModelException as e:
            raise TritonModelException(prefix + str(e)) from None

    def _refusal(self, operation, *kinds):
        """Why an operation is refused; None."""
        if self._cleared:
            return ("Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
                    "deleted AFTER its corresponding 'Metric' objects have been deleted.")
        if self._kind not in kinds:
            return f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}"
        return None

    def _change(self, change, value, prefix, why):
        if why:
            raise TritonModelException(prefix + why)
        _update(self._kind, change, self._name, self._labels, value)


def _float(value, name):
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be float, not {type(value).__name__}")
    return float(value)


for _class in (MetricKind, MetricFamily, Metric):
    _class.__module__ = "c_python_backend_utils"
