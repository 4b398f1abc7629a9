"""Kernels that need nothing of each other as one: asking for a small kernel takes longer than it does.

In: kernels, and their arguments one behind the other. Out: a grid whose programs are those of the first, then
those of the second, and so on. Each kernel's text is a function, which is told its program's number and how
many there are.
"""

from __future__ import annotations

from ..write import Spec, Writer, Written, kernel

_ASKED = {"tl.program_id(0)": "own_program", "tl.num_programs(0)": "own_programs"}
"""What a kernel asks the GPU for, and the parameters that it is told by here."""


@kernel
def together(k: Writer, *, specs: tuple[Spec, ...]) -> None:
    """`specs`; arguments are theirs, each kernel's behind how many programs it has, but for the last."""
    names: dict[Spec, str] = {}
    branches = list[tuple[str, str]]()
    begin = "0"
    k.text("program = tl.program_id(0)")
    for i, spec in enumerate(specs):
        it = spec.written(k.target)
        assert not it.functions, f"{it.name} calls functions of its own"
        k.warps, k.stages, k.options = it.warps, it.stages, dict(it.options)
        if spec not in names:
            names[spec] = f"{it.name}_{i}"
            k.functions.append(_function(names[spec], it))
        last = i == len(specs) - 1
        programs = f"tl.num_programs(0) - {begin}" if last else k.count(f"programs_{i}")
        given = [k.argument(f"{name}_{i}", kind) for name, kind in it.arguments]
        end = "" if last else k.let(f"{begin} + {programs}", "end")
        head = "else:" if last else f"{'elif' if i else 'if'} program < {end}:"
        branches.append((head, f"{names[spec]}({', '.join([*given, f'program - {begin}', programs])})"))
        begin = end
    for head, call in branches:
        with k.block(head):
            k.text(call)


def _function(name: str, it: Written) -> str:
    """A kernel as a function of that name."""
    body = it.body
    for asked, told in _ASKED.items():
        body = body.replace(asked, told)
    parameters = [*(argument for argument, _ in it.arguments), *_ASKED.values()]
    return f"def {name}({', '.join(parameters)}):\n{body}"
