"""However a fed array lies in memory, in C or Fortran order, strided, backwards or misaligned, a run gives
the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from graphs import model
from onnx import helper

import orthrus as ort
from orthrus.testing.samples import Sample, samples

F = np.float32
DRAWN = ("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike")


def strided(a: np.ndarray) -> np.ndarray:
    wide = np.zeros((*a.shape, 2), a.dtype)
    wide[..., 0] = a
    return wide[..., 0]


def backwards(a: np.ndarray) -> np.ndarray:
    if not a.ndim:
        return a
    turned = (slice(None, None, -1),) * a.ndim
    return a[turned].copy()[turned]


def misaligned(a: np.ndarray) -> np.ndarray:
    if a.dtype == object:
        return a
    at = np.empty(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    at[...] = a
    return at


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": lambda a: a.copy("F"), "strided": strided, "backwards": backwards,
    "misaligned": misaligned,
}


def bits(values: list[Any]) -> list[Any]:
    return [bits(v) if isinstance(v, list) else v if not isinstance(v, np.ndarray) else
            (str(v.dtype), v.shape, v.tolist() if v.dtype == object else v.tobytes()) for v in values]


def faults(session: ort.InferenceSession, feeds: dict[str, np.ndarray], what: object) -> Iterator[str]:
    want = bits(session.run(None, feeds))
    for label, layout in LAYOUTS.items():
        given = {name: layout(array) for name, array in feeds.items()}
        if bits(session.run(None, given)) != want:
            yield f"{what}: {label}"


def sample_faults(chosen: list[Sample]) -> list[str]:
    kept = [sample for sample in chosen if sample.op not in DRAWN]
    made = [ort.InferenceSession(sample.model().SerializeToString()) for sample in kept]
    return [line for sample, session in zip(kept, made, strict=True)
            for line in faults(session, sample.feeds, sample)]


def test_reductions_and_losses() -> None:
    assert not sample_faults(samples(["Reduce*", "GlobalLpPool", "NegativeLogLikelihoodLoss", "Einsum"],
                                     ["float", "double"]))


@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow),
                                  pytest.param(1, marks=pytest.mark.thorough)])
def test_every_sample(step: int) -> None:
    assert not sample_faults(list(samples())[::step])


EQUATIONS = {"ij,jk->ik": [(33, 65), (65, 31)], "bij,bkj->bik": [(3, 17, 29), (3, 11, 29)], "ii->i": [(9, 9)],
             "ijk->k": [(13, 7, 19)], "i,j->ij": [(23,), (41,)], "ij,jk,kl->il": [(9, 21), (21, 5), (5, 17)],
             "...ij->...": [(4, 11, 13)], "bhid,bhjd->bhij": [(2, 3, 8, 16), (2, 3, 5, 16)]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in EQUATIONS[equation]]
    assert not list(faults(one("Einsum", arrays, equation=equation), fed(arrays), equation))


@pytest.mark.parametrize(("rule", "count"), [("linear", 4), ("gated", 5), ("gated_delta", 6)])
def test_linear_attention(rule: str, count: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(F) / 4 for shape in (
        (2, 7, 4 * 24), (2, 7, 2 * 24), (2, 7, 2 * 20), (2, 2, 24, 20), (2, 7, 2 * 24), (2, 7, 2))[:count]]
    session = one("LinearAttention", arrays, opset=27, outputs=2, q_num_heads=4, kv_num_heads=2,
                  update_rule=rule)
    assert not list(faults(session, fed(arrays), rule))


def fed(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"i{k}": a for k, a in enumerate(arrays)}


def one(op: str, arrays: list[np.ndarray], opset: int = 17, outputs: int = 1, **attrs: Any
        ) -> ort.InferenceSession:
    names = [f"o{k}" for k in range(outputs)]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in fed(arrays).items()]
    made = model([helper.make_node(op, list(fed(arrays)), names, **attrs)], infos,
                 [helper.make_empty_tensor_value_info(n) for n in names], opset=opset, ir_version=13)
    return ort.InferenceSession(made.SerializeToString())


@ort.op("test.layouts::Laid", result="bool")
def _laid(tensor: Any, sequence: Any) -> Any:
    """Whether each array lies in C order and aligned."""
    return np.array([a.flags.c_contiguous and a.flags.aligned for a in (tensor, *sequence)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_get_arrays_in_c_order_however_they_are_fed(layout: str) -> None:
    a = LAYOUTS[layout](np.arange(12, dtype=F).reshape(3, 4))
    assert not (a.flags.c_contiguous and a.flags.aligned)
    nodes = [helper.make_node("SequenceConstruct", ["t", "t"], ["made"]),
             helper.make_node("Laid", ["t", "s"], ["y"], domain="test.layouts"),
             helper.make_node("Laid", ["t", "made"], ["z"], domain="test.layouts")]
    session = ort.InferenceSession(model(
        nodes, [helper.make_tensor_value_info("t", 1, [3, 4]),
                helper.make_tensor_sequence_value_info("s", 1, None)],
        [helper.make_tensor_value_info(n, 9, [3]) for n in "yz"], domains={"test.layouts": 1}
    ).SerializeToString())
    assert all(made.all() for made in session.run(None, {"t": a, "s": [a, a]}))
    value = ort.OrtValue.ortvalue_from_numpy(a)
    assert all(made.all() for made in session.run(None, {"t": value, "s": [a, a]}))
