"""Writes the models of this folder and cases.json, what their own libraries answer: python3 make.py, with numpy, xgboost-cpu 3.2,
lightgbm 4.7, scikit-learn 1.9 and treelite 4.8. `make.py legacy` writes xgboost.model, with xgboost 1.7 and numpy 1."""
import base64
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
ROWS, FEATURES = 24, 6
rng = np.random.default_rng(7)
train = rng.normal(size=(300, FEATURES)).astype(np.float32)
train[rng.random(train.shape) < 0.1] = np.nan
filled = np.nan_to_num(train)
signal = filled[:, 0] * 2 - filled[:, 1] ** 2 + filled[:, 2] * filled[:, 3]
two = (signal > 0).astype(int)
three = np.digitize(signal, [-1, 1])
data = np.concatenate([train[:ROWS - 4], [[np.nan] * FEATURES, [0] * FEATURES, [1e30] * FEATURES, [-1e30] * FEATURES]]).astype(np.float32)
cases = {}


def packed(array):
    return {"shape": list(array.shape), "datatype": {"float32": "FP32", "float64": "FP64"}[str(array.dtype)],
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}


def case(name, file, inputs, want):
    """want: what the library predicts: values, probabilities."""
    want = want if want.ndim > 1 else want.reshape(-1, 1)
    cases[name] = {"file": file, "input": packed(inputs), "want": packed(want)}
    print(f"{name}: {file} {(HERE / file).stat().st_size} bytes, want {want.dtype} {want.shape}")


def xgboost():
    import xgboost as xgb
    matrix, tested = xgb.DMatrix(train), xgb.DMatrix(data)
    common = {"max_depth": 4, "seed": 1, "nthread": 1}
    for name, file, more, label, rounds in (
            ("xgb_regression", "regression.json", {"objective": "reg:squarederror"}, signal, 10),
            ("xgb_binary", "binary.ubj", {"objective": "binary:logistic"}, two, 10),
            ("xgb_multi", "multi.json", {"objective": "multi:softprob", "num_class": 3}, three, 6),
            ("xgb_count", "count.ubj", {"objective": "count:poisson"}, three, 6),
            ("xgb_targets", "targets.json", {"objective": "reg:squarederror"}, np.stack([signal, -signal, filled[:, 4]], 1), 5),
            ("xgb_vector", "vector.ubj", {"objective": "reg:squarederror", "multi_strategy": "multi_output_tree"},
             np.stack([signal, -signal], 1), 5)):
        matrix.set_label(label)
        booster = xgb.train({**common, **more}, matrix, rounds)
        booster.save_model(HERE / file)
        case(name, file, data, booster.predict(tested))
    categories = np.concatenate([rng.integers(0, 9, (300, 1)), filled[:, :2]], 1).astype(np.float32)
    matrix = xgb.DMatrix(categories, (signal + categories[:, 0] % 3), feature_types=["c", "float", "float"], enable_categorical=True)
    booster = xgb.train({**common, "tree_method": "hist", "max_cat_to_onehot": 1}, matrix, 6)
    booster.save_model(HERE / "categories.json")
    case("xgb_categories", "categories.json", categories[:ROWS], booster.predict(
        xgb.DMatrix(categories[:ROWS], feature_types=["c", "float", "float"], enable_categorical=True)))


def lightgbm():
    import lightgbm as lgb
    common = {"num_leaves": 8, "seed": 1, "num_threads": 1, "verbosity": -1, "deterministic": True, "min_data_in_leaf": 5}
    for name, file, more, label, rounds in (
            ("lgb_regression", "regression.txt", {"objective": "regression"}, signal, 10),
            ("lgb_binary", "binary.txt", {"objective": "binary"}, two, 10),
            ("lgb_multi", "multi.txt", {"objective": "multiclass", "num_class": 3}, three, 5),
            ("lgb_ova", "ova.txt", {"objective": "multiclassova", "num_class": 3}, three, 5),
            ("lgb_forest", "forest.txt", {"objective": "regression", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, signal, 6)):
        booster = lgb.train({**common, **more}, lgb.Dataset(train.astype(np.float64), label), rounds)
        booster.save_model(HERE / file)
        case(name, file, data.astype(np.float64), booster.predict(data.astype(np.float64), num_threads=1))
    categories = np.concatenate([rng.integers(0, 40, (300, 1)), filled[:, :2]], 1).astype(np.float64)
    booster = lgb.train({**common, "min_data_per_group": 5, "cat_smooth": 1}, lgb.Dataset(categories, signal + categories[:, 0] % 5,
                                                                                         categorical_feature=[0]), 6)
    booster.save_model(HERE / "categories.txt")
    case("lgb_categories", "categories.txt", categories[:ROWS], booster.predict(categories[:ROWS], num_threads=1))


def sklearn():
    import sklearn.ensemble as e
    import treelite
    finite = np.nan_to_num(data)
    for name, model, label in (
            ("skl_forest", e.RandomForestClassifier(n_estimators=6, max_depth=4, random_state=1, n_jobs=1), three),
            ("skl_forest_two", e.RandomForestClassifier(n_estimators=6, max_depth=4, random_state=1, n_jobs=1), two),
            ("skl_forest_regression", e.RandomForestRegressor(n_estimators=6, max_depth=4, random_state=1, n_jobs=1), signal),
            ("skl_extra", e.ExtraTreesRegressor(n_estimators=6, max_depth=4, random_state=1, n_jobs=1), np.stack([signal, -signal], 1)),
            ("skl_boosting", e.GradientBoostingClassifier(n_estimators=6, max_depth=3, random_state=1), three),
            ("skl_boosting_two", e.GradientBoostingClassifier(n_estimators=6, max_depth=3, random_state=1), two),
            ("skl_boosting_regression", e.GradientBoostingRegressor(n_estimators=6, max_depth=3, random_state=1), signal),
            ("skl_hist", e.HistGradientBoostingClassifier(max_iter=6, max_depth=3, random_state=1), three),
            ("skl_isolation", e.IsolationForest(n_estimators=6, random_state=1, n_jobs=1), None)):
        model.fit(filled, label)
        file = name[4:] + ".tl"
        treelite.sklearn.import_model(model).serialize(HERE / file)
        predicted = model.predict_proba(finite) if hasattr(model, "predict_proba") else \
            -model.score_samples(finite) if name == "skl_isolation" else model.predict(finite)
        case(name, file, finite.astype(np.float64), predicted)


def legacy():
    import xgboost as xgb
    matrix = xgb.DMatrix(train, two)
    booster = xgb.train({"max_depth": 3, "seed": 1, "nthread": 1, "objective": "binary:logistic", "base_score": 0.3}, matrix, 5)
    booster.save_model(HERE / "xgboost.deprecated")
    (HERE / "xgboost.deprecated").rename(HERE / "xgboost.model")
    case("xgb_legacy", "xgboost.model", data, booster.predict(xgb.DMatrix(data)))


path = HERE / "cases.json"
if sys.argv[1:] == ["legacy"]:
    cases.update(json.loads(path.read_text()))
    legacy()
else:
    xgboost()
    lightgbm()
    sklearn()
path.write_text(json.dumps(cases, indent=1) + "\n")
