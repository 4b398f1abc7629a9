"""What a kernel is given when it is made and when it runs, and what it is once compiled.

A kernel is written as a function `create(info)` that answers with `compute(*arrays)`, or as a class derived
from `OpKernel`; `KernelRegistry.kernel` registers either where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import No, Node, Type, Value, in_memory
from ..records import dataclass
from .gate import vetted
from .registry import KernelEntry

if TYPE_CHECKING:
    from ..providers.base import ExecutionProvider


def _able(name: str, doc: str) -> Any:
    """A further method that what a kernel calls may have, None where it has not."""
    return property(lambda kernel: getattr(kernel.run, name, None), doc=doc)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled step: `run(*inputs)` gives the one output, or a tuple of as many as it has.

    `takes_out`: `run` takes one more argument, an array of the output's shape and type to write into.
    `in_place`: that array may be one of the inputs'. `on_host`: the numbers of inputs that it takes in the
    host's memory, where its provider has another. Where `run` does several nodes' work, or works on its own,
    it is an object that may have the methods below as well.
    """

    run: Callable[..., Any]
    name: str
    takes_out: bool = False
    in_place: bool = False
    on_host: tuple[int, ...] = ()
    own: bool = False

    stepwise = _able("stepwise", """`stepwise(inputs, note, watch, check)` does the same step by step, and
    calls those three that are not None. `note(work, start, end)` is for each step, by the end of the call,
    with times in nanoseconds of `time.perf_counter_ns`, and None for a `Work` for what prepares the steps and
    what the notes take; `watch(value, array)` gets what lies in memory between the steps; `check()` comes
    behind each, and ends the run by what it raises.""")
    quick = _able("quick", "`quick(inputs)` gives the `fastcall.FastRun` for inputs such as these, or None.")
    start = _able("start", """`start(*inputs)` begins the work and gives a function that waits for the end of
    it and gives the results.""")
    into = _able("into", """`into(inputs, targets)`, with an array or None for each output: a result is its
    target, filled, where that can take it.""")
    again = _able("again", """`again(inputs, targets)`, behind an `into` with the same: a function that does
    it once more, at less cost, and answers whether it did; or None.""")
    describe = _able("describe", """`describe()` gives the `Contents` by now, None where nothing is known of
    them.""")
    close = _able("close", "`close()` ends what goes on beside runs, once there will be no more.")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Work:
    """What one timed step of a run does: `kernel`, on behalf of `nodes`, in their order.

    `node`: the one it is named after. `inputs`, `outputs`: the values that come from outside of `nodes` and
    those that others read; `types`: of these and of the values between, as far as they are known. `turn` of
    `turns`: a node may take several steps.
    """

    node: Node
    kernel: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    types: Mapping[Value, Type]
    turn: int = 1
    turns: int = 1

    @property
    def label(self) -> str:
        """The nodes' names: `conv1 + relu1`."""
        return " + ".join(node.label for node in self.nodes)

    def kinds(self, values: Sequence[Value]) -> list[Type]:
        """The known types of `values`."""
        return [self.types[v] for v in values if v in self.types]


class OpKernelInfo:
    """What is fixed when a kernel is made, once per session: the node's
    attributes, constant inputs and provider."""

    __slots__ = ("node", "provider")

    def __init__(self, node: Node, provider: ExecutionProvider) -> None:
        self.node, self.provider = node, provider

    def attribute(self, name: str, default: Any = None) -> Any:
        """The node's attribute, else the operator's default, else `default`."""
        found = self.node.attribute(name)
        return default if found is None else found

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes, defaults included."""
        return self.node.attributes

    def constant_input(self, index: int) -> Any:
        """The array of input `index` where it is constant, else None."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else in_memory(value.const)

    @property
    def input_dtypes(self) -> list[Any]:
        """numpy types of the inputs, None where absent or unknown."""
        return [None if v is None or v.elem is None or not hasattr(v.elem, "numpy") else v.elem.numpy
                for v in self.node.inputs]


class OpKernelContext:
    """What a kernel sees when it runs: its inputs, and room for its outputs."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: Sequence[Any], count: int) -> None:
        self.inputs = inputs
        self.outputs: list[Any] = [None] * count

    def input(self, index: int) -> Any:
        """The array of input `index`, None where absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """A new array for output `index`, to be filled."""
        self.outputs[index] = array = np.empty(tuple(shape), dtype)
        return array

    def set_output(self, index: int, value: Any) -> None:
        self.outputs[index] = value


class OpKernel:
    """A kernel as a class: `__init__` runs once per session, `compute` at every run and from several
    threads."""

    def __init__(self, info: OpKernelInfo) -> None:
        self.info = info

    def compute(self, context: OpKernelContext) -> None:
        raise TypeError(f"{type(self).__name__} does not define compute(context)")


def create_kernel(entry: KernelEntry, info: OpKernelInfo) -> Kernel | No:
    """Make the kernel of `entry` for one node, or pass its refusal on. What somebody else's kernel gives is
    held to the node's types."""
    made = entry.create(info)
    if isinstance(made, No):
        return made
    if not isinstance(made, Kernel):
        run = _entered(made, len(info.node.outputs)) if isinstance(made, OpKernel) else made
        made = Kernel(run, entry.name)
    return replace(made, own=True) if entry.own else replace(made, run=vetted(made.run, info.node))


def _entered(instance: OpKernel, count: int) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        context = OpKernelContext(inputs, count)
        instance.compute(context)
        return context.outputs[0] if count == 1 else tuple(context.outputs)
    return run
