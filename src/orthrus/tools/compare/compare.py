"""`orthrus compare`: where two sides of a model part, and the smallest part that shows it.

In: a model and two sides. Out: tables of errors, or JSON; a folder with the case. Ends with exit code 1 where
the sides diverge. `compare(...)` is the same as a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..asked import import_modules
from ..cli.arguments import (
    ImportOption,
    InputOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    SeedOption,
    ShapeOption,
    Texts,
    console,
    option_of,
    print_json,
    say,
    waiting,
)

if TYPE_CHECKING:
    from .comparison import Comparison, ValueReport
    from .divergence import Divergence
    from .extract import Model
    from .narrow import Case

AMPLIFIED = ("The outputs are further apart than the tolerance, but no node is when both sides give it the "
             "same inputs: roundings grow on their way.")
ROWS = 12
"""Rows that are shown where not all are asked for."""
WIDE = 120
"""Characters a line has to have for every column of errors."""
_MANY = 1_000_000

AOption = Annotated[str, option_of(
    "--a", metavar="SIDE", help="The side that is doubted: a provider by full or short name (cpu, the "
                                "default), onnxruntime, or reference: the definitions in numpy, not "
                                "optimized.")]
BOption = Annotated[str, option_of(
    "--b", metavar="SIDE", help="The side that is trusted, reference by default.")]
AOptions = Annotated[Texts, option_of("--a-option", metavar="KEY=VALUE", help="Provider option of side a.")]
BOptions = Annotated[Texts, option_of("--b-option", metavar="KEY=VALUE", help="Provider option of side b.")]
BLevel = Annotated[str | None, option_of(
    "--b-level", metavar="LEVEL", help="Graph optimization of side b, --level where left out.")]
AgainstOption = Annotated[Path | None, option_of(
    "--against", metavar="OTHER", help="A sibling of the model for side b, such as its quantized form; "
                                       "values are matched by name. Side b is --a where left out.")]
IsolatedOption = Annotated[bool, option_of(
    "--isolated", help="Also feed each node of side a what side b has there, for every node's own error; "
                       "otherwise only nodes beyond tolerance are.")]
RtolOption = Annotated[float | None, option_of(
    "--rtol", help="Relative tolerance. With it or --atol, |a - b| may be atol + rtol * |b|, the one left "
                   "out being 1e-5; by default 1e-4 (float) of a value's largest magnitude, 1e-9 for double, "
                   "1e-2 for float16.")]
AtolOption = Annotated[float | None, option_of("--atol", help="Absolute tolerance.")]
CaseOption = Annotated[Path | None, option_of(
    "--save", metavar="FOLDER", help="Write the smallest part that shows the difference: model.onnx, its "
                                     "inputs, and side b's outputs as the expected ones.")]
AllOption = Annotated[bool, option_of("--nodes", help="List every node's values.")]
BudgetOption = Annotated[int, option_of(
    "--memory", metavar="MB", min=1, help="Megabytes of values that a side keeps at a time, 512 by default.")]


def compare(*args: Any, **kwargs: Any) -> Comparison:
    """See `comparison.compare`."""
    from .comparison import compare as run

    return run(*args, **kwargs)


def command(
    model: ModelArgument, a: AOption = "cpu", b: BOption = "", a_option: AOptions = None,
    b_option: BOptions = None, against: AgainstOption = None, input: InputOption = None,
    shape: ShapeOption = None, seed: SeedOption = 0, level: LevelOption = "all", b_level: BLevel = None,
    isolated: IsolatedOption = False, rtol: RtolOption = None, atol: AtolOption = None,
    save: CaseOption = None, nodes: AllOption = False, memory: BudgetOption = 512,
    modules: ImportOption = None, as_json: JsonOption = False,
) -> None:
    """Run a model on two sides, say which node first differs, and cut out the smallest part that shows it."""
    import_modules(modules)
    from .siblings import compare_models

    if against is not None and (save is not None or isolated):
        raise ValueError("--save and --isolated need one model on both sides; leave --against out")
    chosen = tolerance_of(rtol, atol)
    whole, feeds = model_and_feeds(model, input, shape, seed)
    left = a, settings_of(a_option, "--a-option")
    right = b or (a if against is not None else "reference"), settings_of(b_option, "--b-option")
    with telling() as notify:
        if against is not None:
            found = compare_models(whole, against, left, right, feeds, level=level, b_level=b_level,
                                   tolerance=chosen, seed=seed, budget=memory << 20, notify=notify)
        else:
            found = compare(whole, left, right, feeds, level=level, b_level=b_level, tolerance=chosen,
                            isolated=isolated, save=save, seed=seed, budget=memory << 20, notify=notify)
    if as_json:
        print_json(found.plain())
    else:
        show(found, nodes)
    if found.verdict == "diverge":
        raise typer.Exit(1)


def tolerance_of(rtol: float | None, atol: float | None) -> Any:
    """The tolerance that was asked for; None for the default one."""
    from .divergence import Tolerance

    return None if rtol is None and atol is None else Tolerance(rtol, atol)


def settings_of(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises ValueError for another form."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{flag} {text}: expected KEY=VALUE")
        found[key] = value
    return found


def model_and_feeds(path: Path, given: Texts, shape: Texts, seed: int) -> tuple[Model, Any]:
    """The model to look at and inputs for it, made where they are not given; says what there is to note."""
    from .comparison import feeds_of
    from .extract import Model

    model, notes = Model(path), list[str]()
    with waiting("making inputs"):
        feeds = feeds_of(model, given or [], shape or [], seed, notes.append)
    say("\n".join(notes))
    return model, feeds


def telling() -> Any:
    """A context whose value shows what goes on, where someone is watching for over a second."""
    import contextlib

    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    @contextlib.contextmanager
    def shown() -> Iterator[Any]:
        out = console(stderr=True)
        bar = Progress(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
                       console=out, transient=True, disable=not out.is_terminal)
        with bar:
            task = bar.add_task("loading")
            yield lambda text: bar.update(task, description=text)
    return shown()


def show(found: Comparison, everything: bool) -> None:
    """Print a comparison."""
    out = console()
    out.print(f"a: {found.a}\nb: {found.b}\n", markup=False, highlight=False)
    matched = any(v.match for v in found.values)
    out.print(errors_table("Outputs" if matched else "Outputs of the untouched model", ("output",), [
        ((v.value,), v.error, None, "beyond tolerance" if v.error.beyond else v.error.note)
        for v in found.outputs], out.width))
    rows = chosen_rows(found, everything)
    if rows:
        wide = out.width >= WIDE
        heads = (("node", "operator", "value") if wide else ("node", "value")) + (
            ("matched",) if matched else ())
        texts = [((v.node, v.op_type, v.value) if wide else (v.node, v.value)) + (
            (v.match.rpartition(": ")[2],) if matched else ()) for v in rows]
        out.print(errors_table(
            "\nEvery value" if everything else "\nThe first beyond tolerance and the furthest apart", heads,
            [(t, v.error, v.own, remark(v)) for t, v in zip(texts, rows, strict=True)], out.width))
    if any(v.error.ulp for v in (*found.outputs, *rows)):
        out.print("\nulp: as many floats lie between two elements, at most. Near 0 they lie close together,\n"
                  "a large count is a small error there: go by max abs.", markup=False, highlight=False)
    out.print()
    out.print(verdict(found), markup=False, highlight=False)
    for file in found.files:
        out.print(f"wrote {file}", markup=False, highlight=False)


def errors_table(title: str, heads: Sequence[str],
                 rows: Sequence[tuple[Sequence[str], Divergence, Divergence | None, str]], width: int) -> Any:
    """A table of errors: per row its texts, error, own error and a remark. A narrow one has fewer columns."""
    from ..cli.display import table

    wide, own = width >= WIDE, any(row[2] is not None for row in rows)
    columns = (*heads, "max abs", *(("own error",) if own else ()), *(("max rel",) if wide else ()), "ulp",
               "cosine", *(("mean",) if wide else ()), "")
    cells = []
    for texts, error, alone, told in rows:
        cells.append((*texts, _number(error.max_abs),
                      *((_number(alone.max_abs) if alone is not None else "",) if own else ()),
                      *((_number(error.max_rel),) if wide else ()), _count(error.ulp),
                      f"{error.cosine:.6f}", *((_number(error.mean_abs),) if wide else ()), told))
    made = table(title, columns, cells, right=range(len(heads), len(columns) - 1))
    for column in made.columns[len(heads):-1]:
        column.no_wrap = True
    return made


def chosen_rows(found: Comparison, everything: bool) -> list[ValueReport]:
    """The values worth a row, in running order."""
    if everything:
        return found.values
    faults = [v for v in found.values if v.fault][:ROWS]
    beyond = [v for v in found.values if v.error.beyond][:ROWS // 2]
    far = sorted((v for v in found.values if v.error.excess), key=lambda v: -v.error.excess)[:ROWS // 2]
    wanted = {id(v) for v in (*faults, *beyond, *far)}
    return [v for v in found.values if id(v) in wanted]


def _count(ulp: int | None) -> str:
    return "" if ulp is None else f"{ulp:,}" if ulp < _MANY else f"{ulp:.0e}"


def _number(value: float) -> str:
    return f"{value:.2e}" if value else "0"


def remark(it: ValueReport) -> str:
    """A value's state in words."""
    if it.note:
        return f"FAULT, {it.note}" if it.fault else it.note
    if it.fault:
        return f"FAULT {it.own.note}" if it.own is not None and it.own.note else "FAULT"
    if it.error.beyond:
        return "carried on" if it.own is not None else it.error.note or "beyond tolerance"
    return ""


def verdict(found: Comparison) -> str:
    """What came out, in sentences."""
    count = f"{len(found.values)} values of {len({v.index for v in found.values})} nodes"
    if found.unmatched:
        count += f" ({len(found.unmatched)} values have no match)"
    if found.verdict == "agree":
        grown = sum(v.error.beyond for v in found.values)
        inner = f", though roundings grew beyond tolerance in {grown} of them" if grown else ""
        return f"The sides agree: {count} compared{inner}."
    if found.verdict == "amplified" and any(v.note == "random" for v in found.values):
        return f"The outputs differ, and nodes above them draw random numbers. {count} compared."
    if found.verdict == "amplified":
        return f"{AMPLIFIED} {count} compared."
    if found.first is None:
        return f"The untouched model differs, and no part of it does. {count} compared."
    first = found.first
    if found.case is not None and found.case.fused:
        return "\n".join([
            f"{found.a} differs only where these {len(found.case.nodes)} nodes run together:",
            *nodes_of(found.case), *_kernels(found.case), *_worst(found, found.case)])
    where = f", {first.note}" if first.note else ""
    lines = [f"{'First value beyond tolerance' if first.match else 'The first fault'}: {first.node} "
             f"({first.op_type}), value {first.value}{where}"]
    if first.own is not None and first.own.note:
        lines.append(f"  {first.own.note}")
    elif first.error.note:
        lines.append(f"  {first.error.note}")
    if found.case is not None:
        return "\n".join([*lines, *_kernels(found.case), *_worst(found, found.case)])
    return "\n".join([*lines, *_elements(found, first.own or first.error)])


def nodes_of(case: Case) -> list[str]:
    """A line per node of a case, a long list cut short."""
    lines = [f"  {node} ({kind})" for node, kind in zip(case.nodes, case.op_types, strict=True)]
    return lines if len(lines) <= ROWS else [*lines[:ROWS - 1], f"  ... {len(lines) - ROWS + 1} more"]


def _kernels(case: Case) -> list[str]:
    decided = [f"{key}={value}" for _, given in case.side.providers for key, value in given]
    return [f"  computed by {', '.join(case.kernels)}" + (f", with {', '.join(decided)}" if decided else "")]


def _worst(found: Comparison, case: Case) -> list[str]:
    name, error = max(case.errors.items(), key=lambda item: item[1].excess)
    return _elements(found, error, f"{name}")


def _elements(found: Comparison, error: Divergence, name: str = "") -> list[str]:
    if error.worst is None:
        return [f"  {error.note}"] if error.note else []
    index, got, expected = error.worst
    return [f"  worst element {name}{list(index)}: {got} on {found.a}, {expected} on {found.b}; "
            f"{error.differing:,} of {error.elements:,} differ"]
