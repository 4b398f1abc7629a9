"""Draws of single operators for GPUs' kernels: shapes, orders in memory, types and values that nobody chose.

In: a family and a seed. Out: `Case`s, a model with inputs and what the operator's definition gives for them,
computed in float64 where it takes that. The same seed gives the same case; each turn of it other sizes for
the same model. Sizes 0 and 1, channels 1, 2, 3 and 5 and sizes beside those of tiles come often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from orthrus.ops import find

OPSET = 24
FLOATS = ("float32", "float32", "float16", "bfloat16")
WIDE = (*FLOATS, "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIZES = (1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130)
RTOL = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def numpy_type(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def is_float(array: np.ndarray) -> bool:
    return array.dtype.name in RTOL


@dataclass
class Case:
    """A node. `held`: inputs that are constants of the model; `fixed`: inputs that are fed as they are;
    `own`: the definition computes in the inputs' types; `slack`: a factor on what rounding may do."""

    op: str
    inputs: list[np.ndarray | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    held: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)
    own: bool = False
    slack: float = 1.0

    def __str__(self) -> str:
        given = ", ".join("_" if x is None else f"{x.dtype}{list(x.shape)}{'=' * (i in self.held)}"
                          for i, x in enumerate(self.inputs))
        return f"{self.op}({given}, {self.attrs})"

    def expected(self) -> list[np.ndarray]:
        """What the definition gives, in the result's types, computed in float64."""
        own = self.defined(self.inputs)
        if self.own or not any(x is not None and is_float(x) for x in self.inputs):
            return own
        wide = self.defined([x.astype(np.float64) if x is not None and is_float(x) else x
                              for x in self.inputs])
        with np.errstate(all="ignore"):
            return [b.astype(a.dtype) for a, b in zip(own, wide, strict=True)]

    def defined(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        domain, _, name = self.op.rpartition("::")
        op = find(domain, name, 1 if domain else OPSET)
        assert op is not None, self.op
        with np.errstate(all="ignore"):
            made = op.bind({k: float(np.float32(v)) if isinstance(v, float) else v
                            for k, v in self.attrs.items()}, self.outputs)(*inputs)
        return [np.asarray(v) for v in (made if isinstance(made, tuple) else (made,))[:self.outputs]]


class Draw:
    """Choices. `one_of`, `channels` and `held` are the same in every turn; `size`, `values` are a turn's."""

    def __init__(self, seed: int, turn: int, hostile: bool = False) -> None:
        self.kind, self.turn = np.random.default_rng(seed), np.random.default_rng([seed, turn + 1])
        self.hostile = hostile

    def one_of(self, *what: Any) -> Any:
        return what[int(self.kind.integers(len(what)))]

    def chance(self, share: float) -> bool:
        return bool(self.kind.random() < share)

    def channels(self) -> int:
        return int(self.one_of(1, 2, 3, 5))

    def size(self, *sizes: int) -> int:
        return int(self.turn.choice(sizes or SIZES))

    def shape(self, rank: int, most: int = 1 << 14) -> list[int]:
        """A turn's shape of so many elements at most, now and then of none."""
        shape = [self.size() for _ in range(rank)]
        while math.prod(shape) > most:
            shape[int(np.argmax(shape))] = self.size(1, 2, 3, 5)
        if rank and self.turn.random() < 0.05:
            shape[int(self.turn.integers(rank))] = 0
        return shape

    def values(self, shape: Sequence[int], dtype: str, rng: np.random.Generator | None = None) -> np.ndarray:
        """Elements, the type's most special ones among them where the case is hostile."""
        rng, kind = rng or self.turn, numpy_type(dtype)
        if dtype == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype in RTOL:
            made = np.asarray(rng.normal(size=shape) * rng.choice([0.1, 1, 4])).astype(kind)
            info: Any = ml_dtypes.finfo(kind)
            special = [np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, info.smallest_subnormal, 0.0,
                       -0.0, 1]
        else:
            whole = np.iinfo(kind)
            made = rng.integers(max(-9, whole.min), 10, shape).astype(kind)
            special = [whole.min, whole.max, 0, 1, whole.max // 2]
        if self.hostile:
            at = rng.random(shape) < 0.4
            made = np.where(at, np.array(special, kind)[rng.integers(len(special), size=shape)], made)
        return np.asarray(made, kind)

    def constant(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Elements that every turn has."""
        return self.values(shape, dtype, self.kind)

    def spread(self, shape: Sequence[int], pattern: Sequence[bool], drop: int) -> tuple[int, ...]:
        """What broadcasts to `shape`: 1 where `pattern` says so, without the first `drop` axes."""
        return tuple(1 if one else d for d, one in zip(shape, pattern, strict=True))[drop:]

    def spreads(self, rank: int, count: int) -> list[tuple[list[bool], int]]:
        """How `count` operands broadcast, one of them whole."""
        made = [([self.chance(0.3) for _ in range(rank)], self.one_of(0, 0, 0, *range(rank + 1)))
                for _ in range(count)]
        made[int(self.kind.integers(count))] = ([False] * rank, 0)
        return made


Family = Callable[[Draw], Case]
FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


@dataclass
class Trial:
    """A case as a model: its inputs lie in another order, with gaps, or backwards where `lying` says so; what
    comes out is added to where `behind`."""

    case: Case
    lying: dict[int, tuple[Any, ...]]
    behind: np.ndarray | None

    @staticmethod
    def of(name: str, seed: int, turn: int) -> Trial:
        kind = np.random.default_rng([seed, 77])
        draw = Draw(seed, turn, bool(kind.random() < 0.3))
        case = FAMILIES[name](draw)
        lying: dict[int, tuple[Any, ...]] = {}
        for i, x in enumerate(case.inputs):
            how, order = kind.random(), kind.permutation(6)
            if x is None or i in case.held or i in case.fixed or not x.ndim:
                continue
            if how < 0.2:
                lying[i] = "turned", [int(a) for a in order if a < x.ndim]
            elif how < 0.45:
                lying[i] = "cut", int(order[0]) % x.ndim, 2 if how < 0.33 else -1
        behind = None
        if kind.random() < 0.3 and not draw.hostile:
            out = case.expected()[0]
            if is_float(out):
                pattern = kind.random(8) < 0.4
                shape = [1 if one else d for d, one in zip(out.shape, pattern, strict=False)]
                behind = np.asarray(draw.turn.normal(size=shape)).astype(out.dtype)
        return Trial(case, lying, behind)

    def model(self) -> bytes:
        """The model, sizes open."""
        nodes, names, infos, held = [], [], [], []
        for i, x in enumerate(self.case.inputs):
            names.append("" if x is None else f"x{i}")
            if x is None:
                continue
            if i in self.case.held:
                held.append(numpy_helper.from_array(x, f"x{i}"))
                continue
            kind, *how = self.lying.get(i, ("",))
            fed = f"x{i}f" if kind else f"x{i}"
            infos.append(helper.make_tensor_value_info(fed, helper.np_dtype_to_tensor_dtype(x.dtype),
                                                       [None] * x.ndim))
            if kind == "turned":
                nodes.append(helper.make_node("Transpose", [fed], [f"x{i}"], perm=how[0]))
            elif kind == "cut":
                axis, step = how
                numbers = {"s": 0 if step > 0 else -1, "e": step * (1 << 40), "a": axis, "t": step}
                for key, number in numbers.items():
                    held.append(numpy_helper.from_array(np.array([number], np.int64), f"x{i}{key}"))
                nodes.append(helper.make_node("Slice", [fed, *(f"x{i}{key}" for key in "seat")], [f"x{i}"]))
        domain, _, op = self.case.op.rpartition("::")
        outs = [f"y{i}" for i in range(self.case.outputs)]
        nodes.append(helper.make_node(op, names, outs, domain=domain, **self.case.attrs))
        if self.behind is not None:
            infos.append(helper.make_tensor_value_info(
                "z", helper.np_dtype_to_tensor_dtype(self.behind.dtype), [None] * self.behind.ndim))
            nodes.append(helper.make_node("Add", ["y0", "z"], ["w"]))
            outs[0] = "w"
        results = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outs]
        graph = helper.make_graph(nodes, "g", infos, results, held)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()
        return data

    def feeds(self) -> dict[str, np.ndarray]:
        made = {}
        for i, x in enumerate(self.case.inputs):
            if x is None or i in self.case.held:
                continue
            kind, *how = self.lying.get(i, ("",))
            if kind == "turned":
                made[f"x{i}f"] = np.ascontiguousarray(x.transpose(np.argsort(how[0])))
            elif kind == "cut":
                axis, step = how
                if step < 0:
                    made[f"x{i}f"] = np.ascontiguousarray(np.flip(x, axis))
                else:
                    made[f"x{i}f"] = np.repeat(x, 2, axis)
                    gaps = [slice(None)] * x.ndim
                    gaps[axis] = slice(1, None, 2)
                    made[f"x{i}f"][tuple(gaps)] = 1
            else:
                made[f"x{i}"] = x
        if self.behind is not None:
            made["z"] = self.behind
        return made

    def results(self, own: bool = False) -> list[np.ndarray]:
        """What the definition gives, in the inputs' types where it is to compute in its `own`."""
        made = self.case.defined(self.case.inputs) if own else self.case.expected()
        if self.behind is not None:
            with np.errstate(all="ignore"):
                whole = made[0].astype(np.float64) + self.behind.astype(np.float64)
                made[0] = whole.astype(made[0].dtype)
        return made

    def check(self, found: Sequence[np.ndarray]) -> None:
        """Raises AssertionError where what was found is neither what the definition gives in float64 nor what
        it gives in the inputs' types, which overflow sooner."""
        for i, (a, b) in enumerate(zip(found, self.results(), strict=True)):
            shown = f"{self.case}, result {i}"
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (
                f"{shown}: {a.dtype}{a.shape}, expected {b.dtype}{b.shape}")
            if not is_float(a):
                np.testing.assert_array_equal(a, b, err_msg=shown)
                continue
            wrong = unlike(a, b, self.case.slack)
            if np.any(wrong) and not self.case.own:
                wrong = wrong & unlike(a, self.results(own=True)[i], self.case.slack)
            assert not np.any(wrong), (
                f"{shown}: {int(np.sum(wrong))} of {a.size} differ, first at "
                f"{np.argwhere(wrong)[0].tolist()}: "
                f"{a[wrong].reshape(-1)[:4]}, expected {b[wrong].reshape(-1)[:4]}")


def unlike(found: np.ndarray, expected: np.ndarray, slack: float) -> Any:
    """Where they differ by more than rounding explains."""
    rtol = RTOL[found.dtype.name] * slack
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(b[np.isfinite(b)])
        largest = float(finite.max()) if finite.size else 0.0
        bound = rtol * np.abs(b) + rtol * min(largest, 1.0) + 0.1 * rtol * min(largest, 1e3)
        return ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
