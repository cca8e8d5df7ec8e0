"""Reads the byte table of the local lane by docs/worker-protocol.md alone, into what the JSON of the golden vectors says."""
import struct

LAYOUTS = ("BY_ROW", "RAGGED", "SHARED", "COMPUTED")
CODES = {1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED",
         8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE", 16: "UNAUTHENTICATED"}
TYPES = ("INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16").split()


class Table:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        n = self.take("I")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def dims(self, rank):
        return [str(self.take("q")) for _ in range(rank)]

    def parameters(self, n):
        return [self.parameter() for _ in range(n)]

    def parameter(self):
        name, kind = self.text(), self.take("B")
        field = {2: "bool_value", 3: "int64_value", 4: "uint64_value", 5: "double_value", 6: "string_value"}[kind]
        value = self.text() if kind == 6 else bool(self.take("B")) if kind == 2 else self.take({3: "q", 4: "Q", 5: "d"}[kind])
        return {"name": name, field: str(value) if kind in (3, 4) else value}

    def segment(self):
        """The region's range, or None, and how many bytes."""
        offset, length = self.take("qq")
        if offset >> 61 & 3 != 1:
            return None, length
        return {"slot": offset >> 41 & 0xfffff, "offset": str(offset & (1 << 41) - 1), "byte_size": str(length)}, length

    def request(self):
        sequence, timeout, rows, _, start, end, placed, _, parameters, outputs = self.take("QqIIBBBBII")
        r = {"id": self.text(), "rows": rows, "sequence_id": str(sequence), "sequence_name": self.text(), "sequence_start": bool(start),
             "sequence_end": bool(end), "timeout_ns": str(timeout), "parameters": self.parameters(parameters), "outputs": []}
        for _ in range(outputs):
            name = self.text()
            region = self.segment()[0] if placed else None
            resident = bool(region) and region["slot"] == 0xfffff
            r["outputs"].append({"name": name, "region": None if resident else region, "resident": resident})
        return r

    def input(self, requests):
        datatype, rank, layout, _ = self.take("BBBB")
        i = {"name": self.text(), "data_type": "TYPE_" + TYPES[datatype], "shape": self.dims(rank), "layout": LAYOUTS[layout], "segments": []}
        for _ in range(self.take("I")):
            region, length = self.segment()
            i["segments"].append({"byte_size": str(length), "region": region})
        if layout == 1:
            i["extents"] = [{"shape": self.dims(self.take("B"))} for _ in range(requests)]
        return i

    def batch(self):
        assert self.take("BBH") == (2, 1, 0)
        number, rows, requests, inputs = self.take("QIII")
        return {"id": str(number), "rows": rows, "requests": [self.request() for _ in range(requests)], "inputs": [self.input(requests) for _ in range(inputs)]}

    def output(self):
        datatype, rank, _ = self.take("BBH")
        o = {"name": self.text(), "data_type": "TYPE_" + TYPES[datatype], "shape": self.dims(rank)}
        return {**o, "region": self.segment()[0]}

    def error(self, code):
        text, reason = self.text(), self.text()
        return {"code": CODES[code], "message": text, "reason": reason} if code else None

    def response(self):
        number, code, final, repeat, goes_on = self.take("IBBBB")
        return {"request": number, "error": self.error(code), "final": bool(final), "repeat": bool(repeat), "goes_on": bool(goes_on),
                "parameters": self.parameters(self.take("I")), "outputs": [self.output() for _ in range(self.take("I"))]}

    def result(self):
        version, kind, bits, code = self.take("BBBB")
        assert (version, kind) == (2, 2) and bits in (0, 1, 3, 5, 7)
        number, *compute = self.take("Qqqq")
        return {"batch": str(number), "more": bool(bits & 1), "free": bool(bits & 2), "inputs_read": bool(bits & 4),
                "error": self.error(code), "compute": dict(zip(("input", "infer", "output"), map(str, compute))),
                "outputs": [self.output() for _ in range(self.take("I"))], "responses": [self.response() for _ in range(self.take("I"))]}


    def tensors(self):
        return [self.output() for _ in range(self.take("I"))]

    def call(self):
        version, kind, start, end, number, handle, batch, instance, request, sequence, timeout, priority, stream, *_ = self.take("BBBBQQQIIQqQBBBB")
        assert (version, kind) == (2, 3)
        infer = dict(zip(("model", "version", "request_id", "sequence_name"), [self.text() for _ in range(4)]))
        infer |= {"parameters": self.parameters(self.take("I")), "outputs": [self.text() for _ in range(self.take("I"))], "inputs": self.tensors(),
                  "sequence_id": str(sequence), "timeout_ns": str(timeout), "priority": str(priority), "sequence_start": bool(start),
                  "sequence_end": bool(end), "stream": bool(stream)}
        return {"id": str(number), "handle": str(handle), "instance": instance, "batch": str(batch), "request": request, "infer": infer}

    def answer(self):
        version, kind, final, code, number = self.take("BBBBQ")
        assert (version, kind) == (2, 4)
        return {"id": str(number), "final": bool(final), "error": self.error(code), "parameters": self.parameters(self.take("I")),
                "outputs": self.tensors()}


def plain(value):
    """value without what JSON leaves out: zeros, empty texts and lists, what is not set."""
    if isinstance(value, dict):
        return {k: v for k, v in ((k, plain(v)) for k, v in value.items()) if v not in (None, 0, "", "0", [], {}, False, "BY_ROW", "OK")}
    return [plain(v) for v in value] if isinstance(value, list) else value


def read(name, data):
    t = Table(data)
    value = getattr(t, name.split("_")[0])()
    assert t.at == len(data), f"{len(data) - t.at} bytes are left"
    return plain(value)
