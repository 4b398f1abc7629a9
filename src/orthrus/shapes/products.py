"""Shapes of matrix products, attention and Fourier transforms.

In and out: as in `rules`. The invariant: as there.
"""

from __future__ import annotations

from collections.abc import Callable

from .expression import Dim, floor_div
from .facts import Facts, Shapes, broadcast


def matmul(a_at: int = 0, b_at: int = 1) -> Callable[[Facts], Shapes]:
    def rule(f: Facts) -> Shapes:
        a, b = f.shape(a_at), f.shape(b_at)
        left, right = len(a) == 1, len(b) == 1
        a, b = (_batch_last(x) if f.attribute(f"transBatch{side}") else x for side, x in (("A", a), ("B", b)))
        if f.attribute("transA") and not left:
            a = [*a[:-2], a[-1], a[-2]]
        if f.attribute("transB") and not right:
            b = [*b[:-2], b[-1], b[-2]]
        a, b = [1, *a] if left else a, [*b, 1] if right else b
        f.context.same([a[-1], b[-2]])
        batch = broadcast(f, a[:-2], b[:-2]) if len(a) > 2 or len(b) > 2 else []
        return [[*batch, *([] if left else [a[-2]]), *([] if right else [b[-1]])]]
    return rule


def gemm(f: Facts) -> Shapes:
    if len(f.shape(0)) != 2 or len(f.shape(1)) != 2:
        raise ValueError(f"factors of shapes {f.shape(0)} and {f.shape(1)} are to be matrices")
    return matmul()(f)


def _batch_last(x: list[Dim]) -> list[Dim]:
    """With dimension 0 behind the other batch dimensions."""
    return [*x[1:-1], x[0], x[-1]] if len(x) > 2 else x


def attention(f: Facts) -> Shapes:
    q, k, v = (f.shape(i) for i in range(3))
    heads, shared = f.attribute("q_num_heads"), f.attribute("kv_num_heads")
    flat = len(q) == 3
    if flat:
        q = [q[0], heads, q[1], floor_div(q[2], heads)]
        k, v = ([x[0], shared, x[1], floor_div(x[2], shared)] for x in (k, v))
    total = k[2] + f.shape(4)[2] if f.has(4) else k[2]
    y = [q[0], q[2], q[1] * v[3]] if flat else [*q[:3], v[3]]
    return [[*y], [*k[:2], total, k[3]], [*v[:2], total, v[3]], [*q[:3], total]]


def linear_attention(f: Facts) -> Shapes:
    q, k, v = (f.shape(i) for i in range(3))
    heads, shared = f.attribute("q_num_heads"), f.attribute("kv_num_heads")
    wide = floor_div(v[2], shared)
    return [[*q[:2], wide * heads], [q[0], shared, floor_div(k[2], shared), wide]]


def stft(f: Facts) -> Shapes:
    signal, step = f.shape(0), f.vector(1)[0]
    length: Dim | None = f.shape(2)[0] if f.has(2) else f.vector(3)[0] if f.has(3) else signal[1]
    if length is None or step is None or not isinstance(step, int):
        return [[signal[0], None, None, 2]]
    bins = floor_div(length, 2) + 1 if f.attribute("onesided") else length
    return [[signal[0], floor_div(signal[1] - length, step) + 1, bins, 2]]


def dft(f: Facts) -> Shapes:
    x = f.shape(0)
    axis = f.numbers(2) if f.has(2) else None
    if f.has(2) and axis is None:
        return [[None] * len(x)]
    place = (axis[0] if axis else -2 if f.node.version >= 20 else f.attribute("axis")) % len(x)
    back, half = f.attribute("inverse"), f.attribute("onesided")
    length = f.vector(1)[0] if f.has(1) else (x[place] - 1) * 2 if back and half else x[place]
    if length is not None and half and not back:
        length = floor_div(length, 2) + 1
    return [[*x[:place], length, *x[place + 1:-1], (1 if back and half else 2)]]


def parsed_equation(equation: str) -> tuple[list[str], str | None]:
    """The terms of an Einsum equation and its output, None where implied. Raises ValueError if it is
    malformed."""
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        letters = term.replace("...", "", 1)
        if not (letters.isascii() and (letters.isalpha() or not letters)):
            raise ValueError(f"malformed Einsum equation {equation!r}: a term is letters with at most one"
                             " '...',"
                             f" found {term!r}")
    if not arrow:
        return terms, None
    if len(set(right.replace(".", ""))) != len(right.replace(".", "")):
        raise ValueError(f"malformed Einsum equation {equation!r}: a letter of the output is repeated")
    if missing := set(right) - set(left):
        raise ValueError(f"malformed Einsum equation {equation!r}: {min(missing)!r} stands in the output"
                         " only")
    return terms, right


def einsum(f: Facts) -> Shapes:
    """What the output's letters stand for; letters that are summed over are not looked at."""
    terms, output = parsed_equation(f.attribute("equation"))
    dims: dict[str, list[Dim]] = {}
    ellipses: list[list[Dim]] = []
    for term, shape in zip(terms, map(f.shape, range(len(f.node.inputs))), strict=True):
        before, dots, after = term.partition("...")
        end = len(shape) - len(after)
        if end < len(before) or (not dots and end > len(before)):
            raise ValueError(f"the Einsum term {term!r} does not fit an operand of rank {len(shape)}")
        ellipses.append(shape[len(before):end])
        for letter, dim in zip(before + after, (*shape[:len(before)], *shape[end:]), strict=True):
            dims.setdefault(letter, []).append(dim)
    if output is None:
        output = "..." * any("..." in t for t in terms) + "".join(
            sorted(letter for letter, found in dims.items() if len(found) == 1))
    before, dots, after = output.partition("...")
    return [[*(f.context.wider(dims[k]) for k in before), *(broadcast(f, *ellipses) if dots else []),
             *(f.context.wider(dims[k]) for k in after)]]
