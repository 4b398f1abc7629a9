"""Trees, vectors, text, and control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .arrays import I64, D, F, case, floats, mixed, whole, words
from .elementwise import Cases, _name
from .measuring import ML, MS

ROWS = {"small": 1, "large": 5000}


def _trees(
    kind: str, trees: int = 50, depth: int = 6, features: int = 20, targets: int = 3
) -> dict[str, Any]:
    """Attributes of full trees."""
    inner = 2**depth - 1
    nodes = np.arange(2 * inner + 1)
    leaf = nodes >= inner
    rng = np.random.default_rng(1)
    made: dict[str, list[Any]] = {
        name: []
        for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    other: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        made["treeids"] += [tree] * len(nodes)
        made["nodeids"] += nodes.tolist()
        made["featureids"] += rng.integers(0, features, len(nodes)).tolist()
        made["values"] += rng.standard_normal(len(nodes)).tolist()
        made["modes"] += np.where(leaf, "LEAF", "BRANCH_LEQ").tolist()
        made["truenodeids"] += np.where(leaf, 0, 2 * nodes + 1).tolist()
        made["falsenodeids"] += np.where(leaf, 0, 2 * nodes + 2).tolist()
        for each in nodes[leaf].tolist():
            for target in range(targets):
                other["treeids"].append(tree)
                other["nodeids"].append(each)
                other["ids"].append(target)
                other["weights"].append(float(rng.standard_normal()))
    prefix = "class" if kind == "TreeEnsembleClassifier" else "target"
    attrs = {f"nodes_{name}": value for name, value in made.items()}
    attrs |= {f"{prefix}_{name}": value for name, value in other.items()}
    return attrs | ({} if prefix == "class" else {"n_targets": targets})


def trees() -> Cases:
    """Few of them."""
    for count in (1, 4):
        for depth in (4, 10):
            for rows in (1, 2000):
                attrs = _trees("TreeEnsembleRegressor", count, depth, 10, 1)
                name = f"TreeEnsembleRegressor {count} of depth {depth}, {rows} rows"
                yield name, case("TreeEnsembleRegressor", {"x": floats(rows, 10)}, domain=ML, **attrs)
    about = {"offset": [0.5] * 10, "scale": [2.0] * 10}
    for rows in (1, 300):
        x = {"x": floats(rows, 10, dtype=D)}
        yield f"Scaler double {rows}", case("Scaler", x, domain=ML, **about)
        for norm in ("L1", "L2", "MAX"):
            yield f"Normalizer {norm} double {rows}", case("Normalizer", x, domain=ML, norm=norm)
        y = {"x": np.arange(rows).astype(F) % 5}
        cats = {"cats_int64s": [0, 1, 2, 3]}
        yield f"OneHotEncoder float {rows}", case("OneHotEncoder", y, domain=ML, **cats)
        yield f"Binarizer {rows}", case("Binarizer", {"x": floats(rows, 10)}, domain=ML, threshold=0.3)


def classical() -> Cases:
    labels: dict[str, dict[str, Any]] = {
        "ids": {"classlabels_int64s": [0, 1, 2]},
        "text": {"classlabels_strings": ["a", "b", "c"]},
    }
    for size, rows in ROWS.items():
        for dtype in (F, D):
            x = floats(rows, 20, dtype=dtype)
            yield (
                f"TreeEnsembleRegressor {_name(dtype)} {size}",
                case("TreeEnsembleRegressor", {"x": x}, domain=ML, **_trees("TreeEnsembleRegressor")),
            )
            for name, attrs in labels.items():
                key = attrs if name == "ids" else {"classlabels_strings": ["a", "b", "c"]}
                yield (
                    f"TreeEnsembleClassifier {name} {_name(dtype)} {size}",
                    case(
                        "TreeEnsembleClassifier",
                        {"x": x},
                        domain=ML,
                        outputs=2,
                        **_trees("TreeEnsembleClassifier"),
                        **key,
                    ),
                )
        x = floats(rows, 20)
        for name, attrs in labels.items():
            key = {
                "classlabels_ints" if each == "classlabels_int64s" else each: value
                for each, value in attrs.items()
            }
            yield (
                f"LinearClassifier {name} {size}",
                case(
                    "LinearClassifier",
                    {"x": x},
                    domain=ML,
                    outputs=2,
                    coefficients=floats(60).tolist(),
                    intercepts=[0.1, 0.2, 0.3],
                    post_transform="SOFTMAX",
                    **key,
                ),
            )
            yield (
                f"SVMClassifier {name} {size}",
                case(
                    "SVMClassifier",
                    {"x": x},
                    domain=ML,
                    outputs=2,
                    kernel_type="RBF",
                    kernel_params=[0.1, 0.0, 0.0],
                    rho=[0.1, 0.2, 0.3],
                    coefficients=floats(2 * 90).tolist(),
                    support_vectors=floats(90 * 20).tolist(),
                    vectors_per_class=[30, 30, 30],
                    **key,
                ),
            )
        yield (
            f"LinearRegressor {size}",
            case("LinearRegressor", {"x": x}, domain=ML, coefficients=floats(20).tolist(), intercepts=[0.5]),
        )
        yield (
            f"SVMRegressor {size}",
            case(
                "SVMRegressor",
                {"x": x},
                domain=ML,
                kernel_type="RBF",
                kernel_params=[0.1, 0.0, 0.0],
                rho=[0.1],
                coefficients=floats(90).tolist(),
                support_vectors=floats(90 * 20).tolist(),
                n_supports=90,
            ),
        )
        yield (
            f"Scaler {size}",
            case("Scaler", {"x": x}, domain=ML, offset=floats(20).tolist(), scale=floats(20).tolist()),
        )
        yield (
            f"Imputer {size}",
            case(
                "Imputer",
                {"x": np.where(x > 1, np.nan, x)},
                domain=ML,
                imputed_value_floats=floats(20).tolist(),
                replaced_value_float=float("nan"),
            ),
        )
        yield f"Binarizer {size}", case("Binarizer", {"x": x}, domain=ML, threshold=0.5)
        for norm in ("L1", "L2", "MAX"):
            yield f"Normalizer {norm} {size}", case("Normalizer", {"x": x}, domain=ML, norm=norm)
        yield (
            f"ArrayFeatureExtractor {size}",
            case("ArrayFeatureExtractor", {"x": x}, {"i": np.array([1, 5, 7])}, domain=ML),
        )
        yield (
            f"FeatureVectorizer {size}",
            case("FeatureVectorizer", {"a": x, "b": x}, domain=ML, inputdimensions=[20, 20]),
        )
        numbers, text = whole(50, rows, 1), words(rows, 1)
        every = [f"word{i}" for i in range(50)]
        yield (
            f"OneHotEncoder numbers {size}",
            case("OneHotEncoder", {"x": numbers}, domain=ML, cats_int64s=list(range(50))),
        )
        yield f"OneHotEncoder text {size}", case("OneHotEncoder", {"x": text}, domain=ML, cats_strings=every)
        for one, two, fed in (
            ("int64", "float", numbers),
            ("int64", "string", numbers),
            ("string", "int64", text),
            ("string", "float", text),
            ("float", "int64", numbers.astype(F)),
        ):
            kinds = {"int64": list(range(50)), "string": every, "float": [float(i) for i in range(50)]}
            yield (
                f"LabelEncoder {one} to {two} {size}",
                case(
                    "LabelEncoder",
                    {"x": fed},
                    domain=ML,
                    **{f"keys_{one}s": kinds[one], f"values_{two}s": kinds[two]},
                ),
            )
        yield (
            f"CategoryMapper {size}",
            case("CategoryMapper", {"x": text}, domain=ML, cats_strings=every, cats_int64s=list(range(50))),
        )


def text() -> Cases:
    for size, rows in {"small": 2, "large": 2000}.items():
        lines = np.array([" ".join(each) for each in words(rows, 8)], object)
        every = [f"word{i}" for i in range(50)]
        ngrams: dict[str, Any] = {
            "mode": "TF",
            "min_gram_length": 1,
            "max_gram_length": 1,
            "max_skip_count": 0,
            "ngram_counts": [0],
            "ngram_indexes": list(range(50)),
        }
        yield (
            f"TfIdfVectorizer text {size}",
            case("TfIdfVectorizer", {"x": words(rows, 8)}, pool_strings=every, **ngrams),
        )
        yield (
            f"TfIdfVectorizer numbers {size}",
            case("TfIdfVectorizer", {"x": whole(60, rows, 8)}, pool_int64s=list(range(50)), **ngrams),
        )
        yield (
            f"StringNormalizer lower {size}",
            case("StringNormalizer", {"x": lines}, case_change_action="LOWER"),
        )
        yield (
            f"StringNormalizer stop words {size}",
            case("StringNormalizer", {"x": words(rows)}, stopwords=every[:10], is_case_sensitive=1),
        )
        yield f"StringSplit {size}", case("StringSplit", {"x": lines}, outputs=2)
        yield f"StringConcat {size}", case("StringConcat", {"a": lines, "b": lines})
        yield (
            f"RegexFullMatch {size}",
            case("RegexFullMatch", {"x": lines}, pattern=r"word[0-9]+( word[0-9]+)*"),
        )
        yield (
            f"Tokenizer {size}",
            case("Tokenizer", {"x": lines}, domain=MS, separators=[" "], mark=0, mincharnum=1, pad_value="#"),
        )
        yield f"Equal text {size}", case("Equal", {"a": lines, "b": lines[::-1].copy()})


def _body(
    name: str, nodes: list[Any], ins: list[tuple[str, int, Any]], outs: list[tuple[str, int, Any]]
) -> Any:
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*each) for each in ins],
        [helper.make_tensor_value_info(*each) for each in outs],
    )


def control() -> Cases:
    f, i, b = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    add = _body("add", [helper.make_node("Add", ["x", "x"], ["y1"])], [], [("y1", f, None)])
    mul = _body("mul", [helper.make_node("Mul", ["x", "x"], ["y2"])], [], [("y2", f, None)])
    for size, n in {"small": 8, "large": 4096}.items():
        for way in (True, False):
            yield (
                f"If {way} {size}",
                case("If", {"c": np.array(way), "x": floats(n)}, order="c", then_branch=add, else_branch=mul),
            )
    turn = _body(
        "turn",
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("Tanh", ["w"], ["u"]),
        ],
        [("n", i, []), ("c", b, []), ("v", f, [None])],
        [("c2", b, []), ("u", f, [None])],
    )
    gather = _body(
        "turn",
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Tanh", ["v"], ["u"]),
            helper.make_node("Identity", ["u"], ["s"]),
        ],
        [("n", i, []), ("c", b, []), ("v", f, [None])],
        [("c2", b, []), ("u", f, [None]), ("s", f, [None])],
    )
    for size, turns in {"small": 10, "large": 200}.items():
        yield (
            f"Loop {size}",
            case("Loop", {"n": np.array(turns), "c": np.array(True), "v": floats(64)}, body=turn),
        )
        yield (
            f"Loop that gathers {size}",
            case(
                "Loop", {"n": np.array(turns), "c": np.array(True), "v": floats(64)}, outputs=2, body=gather
            ),
        )
        step = _body(
            "step",
            [
                helper.make_node("Add", ["h", "x"], ["a"]),
                helper.make_node("Tanh", ["a"], ["g"]),
                helper.make_node("Identity", ["g"], ["y"]),
            ],
            [("h", f, [64]), ("x", f, [64])],
            [("g", f, [64]), ("y", f, [64])],
        )
        yield (
            f"Scan {size}",
            case("Scan", {"h": floats(64), "x": floats(turns, 64)}, outputs=2, body=step, num_scan_inputs=1),
        )
        cell = _body(
            "cell",
            [
                helper.make_node("MatMul", ["h", "r"], ["m"]),
                helper.make_node("Add", ["m", "x"], ["a"]),
                helper.make_node("Tanh", ["a"], ["g"]),
                helper.make_node("Identity", ["g"], ["y"]),
            ],
            [("h", f, [1, 64]), ("x", f, [1, 64])],
            [("g", f, [1, 64]), ("y", f, [1, 64])],
        )
        yield (
            f"Scan of a cell {size}",
            case(
                "Scan",
                {"h": floats(1, 64), "x": floats(turns, 1, 64)},
                {"r": floats(64, 64)},
                "h x",
                2,
                body=cell,
                num_scan_inputs=1,
            ),
        )


def odd() -> Cases:
    """Operators of one case each."""
    for size, n in {"small": 16, "large": 512}.items():
        x = floats(n, n)
        yield f"Identity text {size}", case("Identity", {"x": words(n)})
        yield f"SequenceConstruct {size}", case("SequenceConstruct", {"a": x, "b": x})
        yield f"BitCast {size}", case("Cast", {"x": mixed(n, n, dtype=I64)}, to=1)
        yield f"NonZero bool {size}", case("NonZero", {"x": whole(2, n, n).astype(bool)})
        yield f"com.microsoft Unique {size}", case("Unique", {"x": floats(n)}, domain=MS, outputs=3)
        yield f"com.microsoft Trilu {size}", case("Trilu", {"x": x}, domain=MS)
        yield f"ExpandDims {size}", case("ExpandDims", {"x": x}, {"a": np.array(0, np.int32)}, domain=MS)
        yield f"MurmurHash3 {size}", case("MurmurHash3", {"x": whole(99, n, dtype=np.int32)}, domain=MS)
