#!/usr/bin/env python3
"""Measures what the engines cost in sluice, over their libraries called in a loop.

    engines.py [--quick] [--rounds N] [--seconds S]

Models: 100 trees of depth 6 on 32 features, by XGBoost and by LightGBM, at 1 and 32 rows; and mlp.onnx of make bench, by OpenVINO and by
ONNX Runtime. Points are interleaved; shown is the median of the rounds.
  CPU        user and system time of all processes of the server, us for each request
  library    that of one call of the library in a loop, in this process: XGBoost's Booster.inplace_predict and LightGBM's
             Booster.predict in Python, OpenVINO's infer request in Python, ONNX Runtime in C (bin/ort)
  overhead   the first without the second
"""
import argparse
import pathlib
import shutil
import statistics
import sys
import time

import numpy as np

import run

FOLDER = run.ROOT / ".cache" / "bench-models" / "engines"
ONNX = run.ROOT / ".cache" / "bench-models" / "sluice" / "mlp" / "1" / "model.onnx"
FEATURES = 32
# Each point has a model of its own, since a model's input has one shape here.
POINTS = {f"{kind}_{rows}": (kind, rows) for kind in ("xgboost", "lightgbm") for rows in (1, 32)}
POINTS |= {f"{kind}_{rows}": (kind, rows) for kind in ("openvino", "onnxruntime") for rows in (1, 8)}
TREES = 'backend: "fil" max_batch_size: 32 input {{ name: "input__0" data_type: TYPE_FP32 dims: {} }} output {{ name: "output__0" data_type: TYPE_FP32 dims: 1 }}'
MLP = 'backend: "{}" default_model_filename: "model.onnx" max_batch_size: 8 instance_group {{ count: 1 kind: KIND_CPU }}'


def trained():
    """The boosters."""
    import lightgbm
    import xgboost
    rng = np.random.default_rng(7)
    x = rng.random((4000, FEATURES), np.float32)
    y = (x[:, 0] * x[:, 1] + np.sin(6 * x[:, 2]) + 0.1 * rng.standard_normal(4000)).astype(np.float32)
    return {"xgboost": xgboost.train({"max_depth": 6, "nthread": 1}, xgboost.DMatrix(x, y), 100),
            "lightgbm": lightgbm.train({"num_leaves": 64, "max_depth": 6, "num_threads": 1, "verbose": -1}, lightgbm.Dataset(x, y), 100)}


def lay(boosters):
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, (kind, _) in POINTS.items():
        version = FOLDER / name / "1"
        version.mkdir(parents=True)
        if kind in boosters:
            boosters[kind].save_model(version / ("xgboost.ubj" if kind == "xgboost" else "model.txt"))
            config = TREES.format(FEATURES)
        else:
            shutil.copy(ONNX, version / "model.onnx")
            config = MLP.format(kind)
        (FOLDER / name / "config.pbtxt").write_text(config)


def timed(call, seconds):
    """CPU us of one call."""
    for _ in range(20):
        call()
    n, end, begin = 0, time.monotonic() + seconds, time.process_time()
    while time.monotonic() < end:
        for _ in range(20):
            call()
        n += 20
    return 1e6 * (time.process_time() - begin) / n


def library(boosters, name, seconds):
    kind, rows = POINTS[name]
    x = np.random.default_rng(3).random((rows, FEATURES if kind in boosters else 512), np.float32)
    if kind == "xgboost":
        return timed(lambda: boosters[kind].inplace_predict(x), seconds)
    if kind == "lightgbm":
        return timed(lambda: boosters[kind].predict(x), seconds)
    if kind == "onnxruntime":
        return run.interpolate(run.bare_runs(seconds, ("mlp",))["mlp"], rows) * rows
    sys.path.append(str(run.ROOT / ".cache" / "engines" / "openvino"))
    import openvino
    model = openvino.Core().compile_model(str(ONNX), "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
    request = model.create_infer_request()
    request.set_input_tensor(openvino.Tensor(x, shared_memory=True))
    return timed(request.infer, seconds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="one round of 1 s")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    args = p.parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 1
    boosters = trained()
    lay(boosters)
    for name, (kind, rows) in POINTS.items():
        run.MODELS[name] = ("input__0", f"{rows},{FEATURES}") if kind in boosters else ("INPUT0", f"{rows},512")
    server, taken = run.harness.Server(repositories=[FOLDER]), {}
    try:
        for _ in range(args.rounds):
            for name in POINTS:
                taken.setdefault((name, "library"), []).append(library(boosters, name, args.seconds / 2))
                for protocol, n in (("http", 1), ("grpc", 8)):
                    taken.setdefault((name, protocol, n), []).append(run.measure(server, "loadgen", name, protocol, n, args.seconds))
    finally:
        server.stop()
    print(f"{'point':<24} {'req/s':>8} {'p50 us':>7} {'batch':>6} {'CPU us':>7} {'library us':>11} {'overhead us':>12}")
    for name in POINTS:
        alone = statistics.median(taken[name, "library"])
        for protocol, n in (("http", 1), ("grpc", 8)):
            m = run.medians(taken[name, protocol, n])
            print(f"{name + ' ' + protocol + ' ' + str(n):<24} {m['per_second']:>8.0f} {m['p50_us']:>7.0f} {m['batch']:>6.1f} {m['cpu_us']:>7.0f} "
                  f"{alone:>11.0f} {m['cpu_us'] - alone:>12.0f}")


if __name__ == "__main__":
    main()
