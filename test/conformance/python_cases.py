"""What the real server and ours are asked about the models of test/python_models; python.json has the real one's answers.

HTTP: name -> (model, inputs {name: (datatype, shape, data)}, further members of the request)
CODE, SENDER: name -> code for the models `evaluate` and `sender`, which are Python themselves
STREAM: name -> (model, requests, each inputs as above)
LOAD: models that are loaded one by one
"""


def ints(**named):
    return {name: ("INT32", [1], [value]) for name, value in named.items()}


def fault(mode, code=None):
    given = {"MODE": ("INT32", [1, 1], [mode])}
    if code is not None:
        given["CODE"] = ("INT32", [1, 1], [code])
    return ("faults", given, {})


HTTP = {
    "bool": ("types", {"BOOL": ("BOOL", [3], [True, False, True])}, {}),
    **{t.lower(): ("types", {t: (t, [3], [0, 1, 120])}, {}) for t in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{t.lower(): ("types", {t: (t, [3], [-3, 0, 120])}, {}) for t in ("INT8", "INT16", "INT32", "INT64")},
    **{t.lower(): ("types", {t: (t, [3], [-1.5, 0.0, 2.25])}, {}) for t in ("FP32", "FP64")},
    "strings": ("types", {"STRING": ("BYTES", [3], ["a", "", "übermäßig"])}, {}),
    "no elements": ("types", {"FP32": ("FP32", [0], []), "STRING": ("BYTES", [0], [])}, {}),
    "two of the optional": ("types", {"INT8": ("INT8", [1], [7]), "FP32": ("FP32", [2], [0.5, 1.0])}, {}),
    "outputs that are asked for": ("types", {"INT8": ("INT8", [1], [7]), "FP32": ("FP32", [1], [0.5])}, {"outputs": [{"name": "FP32_OUT"}]}),
    "good": fault(0), "raises": fault(1), "no list": fault(2), "no response": fault(3), "too few": fault(4), "error": fault(5),
    **{f"error with code {code}": fault(5, code) for code in range(8)},
    "another name": fault(6), "another datatype": fault(7), "another shape": fault(8), "leaves": fault(9), "error and tensors": fault(10, 0), "raises far down": fault(11),
    "async": ("one_by_one", ints(IN=21), {}),
    "steps": ("chain", ints(IN=5), {}),
    "completed": ("completes", {"A": ("FP32", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8]), "B": ("FP32", [2, 4], [1] * 8)}, {}),
    "completed, without the optional": ("completes", {"A": ("FP32", [1, 4], [1, 2, 3, 4])}, {}),
    "another file": ("named", ints(IN=1), {}),
    "begins a sequence": ("sums", ints(IN=1), {"parameters": {"sequence_id": 7, "sequence_start": True}}),
    "goes on": ("sums", ints(IN=2), {"parameters": {"sequence_id": 7}}),
    "ends": ("sums", ints(IN=3), {"parameters": {"sequence_id": 7, "sequence_end": True}}),
    "a sequence of text": ("sums", ints(IN=3), {"parameters": {"sequence_id": "abc", "sequence_start": True, "sequence_end": True}}),
    "again": ("again", ints(N=3), {}),
    "once": ("again", ints(N=1), {}),
    "again, with an answer": ("again", ints(N=-1), {}),
    "decoupled by infer": ("counter", ints(N=1), {}),
}

CODE = {
    "args": "result = {k: [type(v).__name__, v if k not in ('model_config', 'model_repository') else ''] for k, v in model.args.items()}",
    "args: the model's folder": "import os; result = os.path.basename(model.args['model_repository'])",
    "args: config": "c = json.loads(model.args['model_config']); result = {k: c[k] for k in sorted(c) if k not in ('platform',)}",
    "model folder": "import os; result = os.path.relpath(pb_utils.get_model_dir(), model.args['model_repository'])",
    "constants": """result = {n: getattr(pb_utils, n) for n in dir(pb_utils) if n.startswith('TRITONSERVER_')
          and isinstance(getattr(pb_utils, n), int)}""",
    "error codes": """E = pb_utils.TritonError
result = [[n, int(getattr(E, n))] for n in 'UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED'.split()]""",
    "an error": "e = pb_utils.TritonError('text'); result = [e.message(), int(e.code())]",
    "string to numpy": "result = {n: np.dtype(pb_utils.triton_string_to_numpy(n)).name for n in pb_utils.TRITON_STRING_TO_NUMPY}",
    "string to numpy, unknown": "result = attempt(pb_utils.triton_string_to_numpy, 'TYPE_BF16')",
    "triton to numpy": "result = [None if pb_utils.triton_to_numpy_type(n) is None else np.dtype(pb_utils.triton_to_numpy_type(n)).name for n in range(15)]",
    "numpy to triton": """result = [pb_utils.numpy_to_triton_type(t) for t in (np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16,
          np.int32, np.int64, np.float16, np.float32, np.float64, np.object_, np.complex64)]""",
    "byte tensor": "result = pb_utils.serialize_byte_tensor(np.array([b'ab', 'c', 1], np.object_)).item() if hasattr(pb_utils.serialize_byte_tensor(np.array([b'ab'], np.object_)), 'item') else pb_utils.serialize_byte_tensor(np.array([b'ab', 'c', 1], np.object_))",
    "byte tensor, empty": "result = [type(pb_utils.serialize_byte_tensor(np.array([], np.object_))).__name__, len(pb_utils.serialize_byte_tensor(np.array([], np.object_)))]",
    "byte tensor of numbers": "result = attempt(pb_utils.serialize_byte_tensor, np.array([1], np.int32))",
    "bytes tensor": "result = pb_utils.deserialize_bytes_tensor(b'\\x02\\x00\\x00\\x00ab\\x00\\x00\\x00\\x00')",
    "config by name": """c = json.loads(model.args['model_config'])
result = [pb_utils.get_input_config_by_name(c, 'CODE')['data_type'], pb_utils.get_output_config_by_name(c, 'RESULT')['dims'],
          pb_utils.get_input_config_by_name(c, 'NONE'), pb_utils.using_decoupled_model_transaction_policy(c)]""",
    "tensor": "t = tensor('A', [[1, 2]]); result = [t.name(), t.shape(), t.is_cpu(), t.as_numpy()]",
    "tensor of strings": "t = pb_utils.Tensor('A', np.array([[b'a', b'bc']])); result = [t.shape(), t.as_numpy()]",
    "tensor of str": "t = pb_utils.Tensor('A', np.array(['a', 'ü'], np.object_)); result = t.as_numpy()",
    "tensor of unicode": "result = attempt(pb_utils.Tensor, 'A', np.array(['a']))",
    "tensor of complex": "result = attempt(pb_utils.Tensor, 'A', np.array([1j]))",
    "tensor without name": "result = attempt(pb_utils.Tensor, '', np.array([1]))",
    "tensor: wrong types": "result = [kind(pb_utils.Tensor, 'A', [1]), kind(pb_utils.Tensor, 'A', None), kind(pb_utils.Tensor, None, np.array([1])), kind(pb_utils.Tensor, 'A', 1)]",
    "tensor: not contiguous": "t = pb_utils.Tensor('A', np.arange(6, dtype=np.int32).reshape(2, 3).T); result = [t.shape(), t.as_numpy()]",
    "tensor: device": "t = tensor('A', [1]); result = list(t.__dlpack_device__())",
    "dlpack there and back": "t = pb_utils.Tensor.from_dlpack('B', tensor('A', [[1, 2], [3, 4]])); result = [t.name(), t.as_numpy()]",
    "dlpack of an array": "t = pb_utils.Tensor.from_dlpack('B', np.arange(4, dtype=np.float32)); result = t.as_numpy()",
    "dlpack by capsule": "t = pb_utils.Tensor.from_dlpack('B', tensor('A', [5]).to_dlpack()); result = t.as_numpy()",
    "dlpack into numpy": "result = np.from_dlpack(tensor('A', [1, 2, 3]))",
    "dlpack of strings": "result = attempt(pb_utils.Tensor('A', np.array([b'a'], np.object_)).to_dlpack)",
    "dlpack of a word": "result = attempt(pb_utils.Tensor.from_dlpack, 'B', 'word').split('.')[0]",
    "dlpack, not contiguous": "result = attempt(pb_utils.Tensor.from_dlpack, 'B', np.arange(6, dtype=np.int32).reshape(2, 3).T).split('.')[0]",
    "in place": "a = request.inputs()[0].as_numpy(); result = [a.flags.writeable, a.dtype.name, list(a.shape)]",
    "request": """result = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), json.loads(request.parameters() or '{}'),
          request.requested_output_names(), request.is_cancelled(), len(request.inputs()), request.trace().get_context()]""",
    "request: kinds": "result = [type(x).__name__ for x in (request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.parameters(), request.requested_output_names(), request.inputs())]",
    "request without inputs": "result = attempt(pb_utils.InferenceRequest, inputs=[None], model_name='m', requested_output_names=['o'])",
    "request: wrong types": """I = pb_utils.InferenceRequest
good = dict(inputs=[tensor('A', [1])], model_name='m', requested_output_names=['o'])
result = [kind(I, **dict(good, **wrong)) for wrong in (dict(inputs=None), dict(model_name=None), dict(requested_output_names=None), dict(model_version=None),
          dict(correlation_id=None), dict(request_id=None), dict(flags=None), dict(timeout=None), dict(model_version='1'))] + [kind(I)]""",
    "request: names": "result = attempt(pb_utils.InferenceRequest, inputs=[tensor('A', [1])], model_name='m', requested_output_names=[''])",
    "request: correlation": "result = [attempt(pb_utils.InferenceRequest, inputs=[tensor('A', [1])], model_name='m', requested_output_names=[], correlation_id=1.5)]",
    "request: parameters": """I = pb_utils.InferenceRequest
good = dict(inputs=[tensor('A', [1])], model_name='m', requested_output_names=['o'])
result = [attempt(I, **good, parameters={1: 'a'}), attempt(I, **good, parameters={'a': []}), attempt(I, **good, parameters={'a': None}),
          json.loads(I(**good, parameters={'a': 1, 'b': 's', 'c': True}).parameters())]""",
    "request: made": """r = pb_utils.InferenceRequest(inputs=[tensor('A', [1])], model_name='m', requested_output_names=['o', 'p'], request_id='x', correlation_id=4, flags=1, timeout=9)
result = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), sorted(r.requested_output_names()), [t.name() for t in r.inputs()]]
r.set_flags(3)
result.append(r.flags())""",
    "response": """r = pb_utils.InferenceResponse([tensor('A', [1])]); e = pb_utils.InferenceResponse(error=pb_utils.TritonError('no'))
result = [[t.name() for t in r.output_tensors()], r.has_error(), r.error(), e.has_error(), e.error().message(), [t.name() for t in e.output_tensors()]]""",
    "response: nothing": "result = [attempt(pb_utils.InferenceResponse, [None]), kind(pb_utils.InferenceResponse, None), kind(pb_utils.InferenceResponse, [], 'word')]",
    "by name": """r = pb_utils.InferenceResponse([tensor('A', [1])])
result = [pb_utils.get_output_tensor_by_name(r, 'A').name(), pb_utils.get_output_tensor_by_name(r, 'B'), pb_utils.get_input_tensor_by_name(request, 'B')]""",
    "memory": "m = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0); result = [kind(pb_utils.PreferredMemory, None), type(m).__name__]",
    "exception": "result = [issubclass(pb_utils.TritonModelException, Exception)]",
    "logger": """L = pb_utils.Logger
result = [L.log('one'), L.log('two', L.INFO), L.log_info('a'), L.log_warn('b'), L.log_error('c'), L.log_verbose('d'), kind(L.log, 'x', 1), kind(L.log_info, None),
          kind(L.log, 'x', 'INFO')]""",
    "a counter": """f = pb_utils.MetricFamily(name='py_count', description='counts', kind=pb_utils.MetricFamily.COUNTER)
m = f.Metric(labels={'a': '1'})
m.increment(2); m.increment(0.5)
result = [m.value(), attempt(m.increment, -1), attempt(m.set, 1), attempt(m.observe, 1), m.value()]
del m""",
    "a gauge": """f = pb_utils.MetricFamily(name='py_gauge', description='g', kind=pb_utils.MetricFamily.GAUGE)
m = f.Metric(labels={'a': '1'})
m.set(5); m.increment(-2)
result = [m.value(), attempt(m.observe, 1)]
del m""",
    "a histogram": """f = pb_utils.MetricFamily(name='py_histogram', description='h', kind=pb_utils.MetricFamily.HISTOGRAM)
m = f.Metric(labels={'a': '1'}, buckets=[1, 2, 4])
m.observe(1.5)
result = [attempt(m.value), attempt(m.increment, 1), attempt(m.set, 1)]
del m""",
    "metrics that can't be": """F = pb_utils.MetricFamily
c = F(name='py_other', description='d', kind=F.COUNTER); h = F(name='py_other_histogram', description='d', kind=F.HISTOGRAM)
result = [attempt(c.Metric, labels=[]), attempt(c.Metric, labels={'a': 'b'}, buckets=[1]), attempt(h.Metric, labels={'a': 'b'}), attempt(h.Metric, labels={'a': 'b'}, buckets={'a': 1}),
          kind(F, name=None, description='d', kind=F.COUNTER), kind(F, name='a', description='d', kind=None)]""",
    "a family that is gone": """f = pb_utils.MetricFamily(name='py_gone', description='g', kind=pb_utils.MetricFamily.GAUGE)
m = f.Metric(labels={'a': '1'})
del f
result = attempt(m.set, 1)""",
    "call": "result = ask('one_by_one', [tensor('IN', [4])])",
    "call, outputs": "result = [ask('one_by_one', [tensor('IN', [4])], ['OUT']), ask('one_by_one', [tensor('IN', [4])], ['ZZ'])]",
    "call, version": "result = [ask('one_by_one', [tensor('IN', [4])], model_version=1), ask('one_by_one', [tensor('IN', [4])], model_version=9)]",
    "call, unknown": "result = ask('nobody', [tensor('IN', [4])])",
    "call, too few": "result = ask('one_by_one', [])",
    "call, another input": "result = ask('one_by_one', [tensor('XX', [4])])",
    "call, another datatype": "result = ask('one_by_one', [tensor('IN', [4], np.float32)])",
    "call, another shape": "result = ask('one_by_one', [tensor('IN', [4, 5])])",
    "call, strings": "result = ask('types', [pb_utils.Tensor('STRING', np.array([b'x', 'y'], np.object_))])",
    "call, nothing in it": "result = ask('types', [tensor('FP32', [], np.float32)])",
    "call, a fault": "result = [ask('faults', [tensor('MODE', [[m]])]) for m in (1, 5)]",
    "call, codes": "result = ask('faults', [tensor('MODE', [[5]]), tensor('CODE', [[3]])])",
    "call, decoupled": "result = ask('counter', [tensor('N', [3])], decoupled=True)",
    "call, decoupled, none": "result = ask('counter', [tensor('N', [0])], decoupled=True)",
    "call, decoupled, an error": "result = ask('counter', [tensor('N', [3]), tensor('FAIL', [1])], decoupled=True)",
    "call, decoupled without saying so": "result = ask('counter', [tensor('N', [3])])",
    "call, not decoupled, iterated": "result = ask('one_by_one', [tensor('IN', [4])], decoupled=True)",
    "call, iterated twice": """i = pb_utils.InferenceRequest(model_name='counter', inputs=[tensor('N', [2])], requested_output_names=['OUT']).exec(decoupled=True)
result = [[told(a) for a in i], [told(a) for a in i]]""",
    "call, an ensemble": "result = ask('chain', [tensor('IN', [4])])",
    "call, a sequence": """result = [ask('sums', [tensor('IN', [n])], ['SUM'], correlation_id=99, flags=f) for n, f in ((1, 1), (2, 0), (3, 2))]""",
    "call, ten": "result = [ask('one_by_one', [tensor('IN', [n])])['OUT'][2][0] for n in range(10)]",
    "call, large": "a = np.arange(300000, dtype=np.float32); result = bool((pb_utils.InferenceRequest(model_name='types', inputs=[pb_utils.Tensor('FP32', a)], requested_output_names=['FP32_OUT']).exec().output_tensors()[0].as_numpy() == a).all())",
    "ready": "result = [pb_utils.is_model_ready('types'), pb_utils.is_model_ready('types', '1'), attempt(pb_utils.is_model_ready, 'types', '7'), attempt(pb_utils.is_model_ready, 'nobody')]",
    "ready: wrong types": "result = [kind(pb_utils.is_model_ready, None), kind(pb_utils.is_model_ready, 'types', 1)]",
    "load, not explicit": "result = attempt(pb_utils.load_model, 'nobody')",
    "load: files": "result = attempt(pb_utils.load_model, model_name='types', config='{}', files=[])",
}

SENDER = {
    "one answer, final": "sender.send(answer('a'), flags=FINAL)",
    "one answer, then final": "sender.send(answer('a')); sender.send(flags=FINAL)",
    "later": "later(sender.send, answer('late'), flags=FINAL)",
    "no answer, no flags": "sender.send(answer(attempt(sender.send)), flags=FINAL)",
    "another flag": "sender.send(answer(attempt(sender.send, answer('a'), flags=5)), flags=FINAL)",
    "final without an answer": "sender.send(answer(attempt(sender.send, flags=FINAL)), flags=FINAL)",
    "an error": "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('not so', pb_utils.TritonError.NOT_FOUND)), flags=FINAL)",
    "raises": "raise ValueError('before an answer')",
    "one sender": "sender.send(answer(str(request.get_response_sender() is sender)), flags=FINAL)",
}

STREAM = {
    "none": ("counter", [ints(N=0)]),
    "three": ("counter", [ints(N=3)]),
    "late": ("counter", [{**ints(N=3), "LATE": ("BOOL", [1], [True])}]),
    "an error among them": ("counter", [ints(N=3, FAIL=1)]),
    "an error last": ("counter", [ints(N=2, FAIL=1)]),
    "returns something": ("counter", [{**ints(N=0), "LATE": ("BOOL", [1], [True]), "RETURN": ("BOOL", [1], [True])}]),
    "async": ("overlap", [ints(DELAY=3)]),
    "not decoupled": ("one_by_one", [ints(IN=3), ints(IN=4)]),
    "raises": ("faults", [{"MODE": ("INT32", [1, 1], [1])}, {"MODE": ("INT32", [1, 1], [0])}]),
}

LOAD = ["bad_import", "bad_syntax", "bad_class", "bad_initialize", "bad_execute", "bad_complete", "bad_conflict", "bad_batch", "bad_end", "bad_file",
        "bad_death", "types"]

# What the real one does that ours doesn't: part and name -> (pattern of our answer, as JSON; why)
OURS = {
    "http: another name": ("which its config does not have|not in its configuration", "an output that the config does not have is no answer"),
    "http: another datatype": ("TYPE_FP32, its configuration says TYPE_INT32", "the client is told by the config what it gets"),
    "http: another shape": (r"\[1, 2\], its configuration says \[-1, 1\]", "the same"),
    "code: call, decoupled, an error": ("no further", "the real one leaves the error out"),
    "load: bad_import": (r"No module named 'nothing_of_this_name'\\n\\nAt:\\n  1/model.py\(1\): <module>\\n", "without Python's own frames"),
    "load: bad_execute": ("does not implement `execute` method", "it could not serve a request"),
    "load: bad_conflict": ("model provides TYPE_FP32\\\\n\\\\nAt:\\\\n  1/model.py", "without the frames of pb_utils"),
    "load: bad_batch": ("specified max_batch_size 2\\\\n\\\\nAt:\\\\n  1/model.py", "without the frames of pb_utils"),
    "load: bad_file": ("unable to find '1/model.py'", "the real one loads for ever"),
    "load: bad_death": (r"Stub process 'bad_death_0' is not healthy. \(exit status 7\)", "with the cause"),
}
