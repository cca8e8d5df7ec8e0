"""Models with sequence_batching for the tests: their graphs and configs."""
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

I32, I64, FP32, BOOL, STRING = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.STRING)
START = '{ name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
END = '{ name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }'
READY = '{ name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ -1, 2.5 ] } }'
CORRID = '{ name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }'


def graph(nodes, inputs, outputs, weights=None):
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
                          [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
                          [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)])
    m.ir_version = 8
    checker.check_model(m)
    return m.SerializeToString()


def accumulator():
    """SUM is STATE_IN + VALUE, and what STATE_OUT says."""
    b = ["batch", 1]
    return graph([helper.make_node("Add", ["STATE_IN", "VALUE"], ["SUM"]), helper.make_node("Identity", ["SUM"], ["STATE_OUT"])],
                 [("VALUE", I32, b), ("STATE_IN", I32, b)], [("SUM", I32, b), ("STATE_OUT", I32, b)])


def controls(kind):
    """Every control as an output, and VALUE."""
    b = ["batch", 1]
    types = {"START": I32, "END": BOOL, "READY": FP32, "CORRID": kind, "VALUE": I32}
    return graph([helper.make_node("Identity", [n], [n + "_OUT"]) for n in types], [(n, t, b) for n, t in types.items()],
                 [(n + "_OUT", t, b) for n, t in types.items()])


def collector(kind):
    """ALL is what came before and VALUE behind it; it is the state too, and grows."""
    return graph([helper.make_node("Concat", ["BEFORE", "VALUE"], ["ALL"], axis=1)],
                 [("BEFORE", kind, ["batch", "m"]), ("VALUE", kind, ["batch", "n"])], [("ALL", kind, ["batch", "k"])])


def config(strategy, tensors, batching, max_batch=4, extra=""):
    text = f'backend: "onnxruntime"\nmax_batch_size: {max_batch}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n' + extra
    for n, t, dims in tensors:
        text += f'{"input" if n == "VALUE" else "output"} {{ name: "{n}" data_type: TYPE_{t} dims: {dims} }}\n'
    return text + f"sequence_batching {{ {strategy} {batching} }}\n"


SUM = [("VALUE", "INT32", [1]), ("SUM", "INT32", [1])]
STATE = 'input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: 1'


def write(repo, name, text, files):
    (repo / name / "1").mkdir(parents=True)
    (repo / name / "config.pbtxt").write_text(f'name: "{name}"\n' + text)
    for path, data in files.items():
        (repo / name / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / name / path).write_bytes(data)


def repository(repo):
    model = {"1/model.onnx": accumulator()}
    write(repo, "direct", config("direct {}", SUM, f"state {{ {STATE} }} max_sequence_idle_microseconds: 60000000"), model)
    write(repo, "direct_idle", config("direct {}", SUM, f"state {{ {STATE} }} max_sequence_idle_microseconds: 300000", 2), model)
    write(repo, "direct_wait", config("direct { minimum_slot_utilization: 1.0 max_queue_delay_microseconds: 300000 }", SUM,
                                      f"state {{ {STATE} }}", 2), model)
    write(repo, "oldest", config("oldest { max_candidate_sequences: 32 preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 }",
                                 SUM, f"state {{ {STATE} }} max_sequence_idle_microseconds: 400000", 8), model)
    write(repo, "thousand", config("oldest { max_candidate_sequences: 1024 }", SUM,
                                   f"state {{ {STATE} }} max_sequence_idle_microseconds: 10000000", 64), model)
    write(repo, "ordered", config("oldest { max_candidate_sequences: 8 preserve_ordering: true }", SUM, f"state {{ {STATE} }}"), model)
    seed = 'initial_state { name: "seed" data_type: TYPE_INT32 dims: 1 data_file: "seed" }'
    write(repo, "seeded", config("oldest {}", SUM, f"state {{ {STATE} {seed} }}"),
          {**model, "initial_state/seed": np.int32(1000).tobytes()})
    for kind, t in (("UINT64", TensorProto.UINT64), ("INT64", I64), ("UINT32", TensorProto.UINT32), ("INT32", I32), ("STRING", STRING)):
        outputs = [("VALUE", "INT32", [1]), ("START_OUT", "INT32", [1]), ("END_OUT", "BOOL", [1]), ("READY_OUT", "FP32", [1]),
                   ("CORRID_OUT", kind, [1]), ("VALUE_OUT", "INT32", [1])]
        write(repo, "controls_" + kind.lower(), config("direct {}", outputs, f"control_input [ {START}, {END}, {READY}, {CORRID % kind} ]", 3),
              {"1/model.onnx": controls(t)})
    for kind, t, extra in (("INT32", I32, "use_same_buffer_for_input_output: true use_growable_memory: true"), ("STRING", STRING, "")):
        tensors = [("VALUE", kind, [-1]), ("ALL", kind, [-1])]
        state = f'state {{ input_name: "BEFORE" output_name: "ALL" data_type: TYPE_{kind} dims: -1 {extra} '
        state += f'initial_state {{ name: "none" data_type: TYPE_{kind} dims: 0 zero_data: true }} }}'
        write(repo, "collect_" + kind.lower(), config("oldest { max_candidate_sequences: 8 }", tensors, state), {"1/model.onnx": collector(t)})
    echo = 'backend: "identity"\nmax_batch_size: 4\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }\n'
    echo += 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }\ninstance_group { count: 1 kind: KIND_CPU }\n'
    write(repo, "plain", echo + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n", {})
    write(repo, "iterative", echo + "sequence_batching { iterative_sequence: true }\n", {})
    return repo
