"""Providers that are wrong in one way each, and one that is right; imports nothing but numpy and orthrus.

`Floor` and `Add` are where a fault of a single operator sits: graphs are built of the others.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.ir import ElementType, No, Node
from orthrus.kernels import Kernel
from orthrus.providers import Capability, GraphView, Option, Part, convex_groups

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Tanh": np.tanh, "Neg": np.negative, "Abs": np.abs, "Relu": lambda x: np.maximum(x, 0), "Floor": np.floor,
    "Add": np.add, "Sub": np.subtract,
}
OPERATORS = tuple(FUNCTIONS)
FAILING: dict[str, tuple[type[ort.ExecutionProvider], frozenset[str]]] = {}
"""Broken providers by name, with the checks that have to find them out, and no others."""


class Good(ort.ExecutionProvider):
    """Elementwise nodes of float and int32, each group as one function."""

    name = "GoodExecutionProvider"
    fuses = True

    def claim(self, node: Node) -> No | None:
        if node.domain or node.op_type not in FUNCTIONS:
            return No(f"{node.kind} is not in the table")
        if any(v is None or v.elem not in (ElementType.FLOAT, ElementType.INT32)
               for v in (*node.inputs, *node.outputs)):
            return No("neither float nor int32")
        return None

    def function(self, node: Node) -> Callable[..., Any]:
        return FUNCTIONS[node.op_type]

    def compile(self, part: Part) -> Sequence[Kernel]:
        slots = {value: i for i, value in enumerate(part.inputs)}
        start: list[Any] = [None] * len(slots)
        steps = []
        for node in part.nodes:
            for value in node.inputs:
                assert value is not None
                if value not in slots:
                    slots[value] = len(start)
                    start.append(value.const)
            slots[node.output] = len(start)
            start.append(None)
            steps.append((self.function(node), [slots[v] for v in node.inputs if v is not None],
                          slots[node.output]))
        results = [slots[v] for v in part.outputs]

        def run(*arrays: Any) -> Any:
            values = [*arrays, *start[len(arrays):]]
            for function, reads, write in steps:
                values[write] = np.asarray(function(*[values[i] for i in reads]))
            return tuple(values[i] for i in results)

        return [Kernel(run, " + ".join(node.op_type for node in part.nodes))]


def broken(*checks: str) -> Callable[[Any], Any]:
    """The decorated class fails these checks."""
    def decorate(cls: Any) -> Any:
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__name__}ExecutionProvider"
        FAILING[cls.__name__] = cls, frozenset(checks)
        return cls
    return decorate


class OneOperator(Good):
    """`victim` computes something else."""

    victim = "Floor"

    def function(self, node: Node) -> Callable[..., Any]:
        right = FUNCTIONS[node.op_type]
        return self.wrong(node, right) if node.op_type == self.victim else right

    def wrong(self, node: Node, right: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


@broken("results")
class WrongForOneType(OneOperator):
    victim = "Add"

    def wrong(self, node: Node, right: Any) -> Any:
        return lambda a, b: right(a, b) + (a.dtype == np.int32)


@broken("results")
class WrongType(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        return lambda x: right(x).astype(np.float64)


@broken("empty_tensors")
class WrongForNothing(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        return lambda x: right(x) if x.size else np.zeros(0, x.dtype)


@broken("scalars")
class WrongForScalars(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        return lambda x: right(np.atleast_1d(x))


@broken("broadcasting")
class WrongForBroadcast(OneOperator):
    victim = "Add"

    def wrong(self, node: Node, right: Any) -> Any:
        return lambda a, b: right(a, b) if a.shape == b.shape else right(a, b) * 2


@broken("inputs_untouched")
class Overwrites(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        def run(x: np.ndarray) -> Any:
            made = right(x)
            if x.flags.writeable and x.size:
                x[...] = 7
            return made
        return run


@broken("inputs_untouched")
class OverwritesConstants(OneOperator):
    victim = "Add"

    def wrong(self, node: Node, right: Any) -> Any:
        constant = node.inputs[1] is not None and node.inputs[1].const is not None

        def run(a: np.ndarray, b: np.ndarray) -> Any:
            made = right(a, b)
            if constant and b.size:
                ctypes.memset(b.ctypes.data, 1, b.nbytes)
            return made
        return run


@broken("fresh_results")
class HandsOutItsBuffer(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        kept = threading.local()

        def run(x: np.ndarray) -> Any:
            if getattr(kept, "shape", None) != x.shape:
                kept.shape, kept.buffer = x.shape, np.empty_like(x, order="C")
            kept.buffer[...] = right(x)
            return kept.buffer
        return run


@broken("strided_inputs")
class TakesMemoryForOrder(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        return lambda x: right(x.ravel("K")).reshape(x.shape)


@broken("strided_inputs")
class NeedsToWrite(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        def run(x: np.ndarray) -> Any:
            x.flags.writeable = x.flags.writeable or not x.size
            if not x.flags.writeable:
                raise ValueError("a kernel of this engine takes writable memory only")
            return right(x)
        return run


@broken("shapes_left_open")
class FixesShapes(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        value = node.inputs[0]
        shape = [d if isinstance(d, int) else 1 for d in (value.shape if value is not None else ())]
        return lambda x: right(x).reshape(shape)


@broken("constant_inputs")
class ForgetsConstants(OneOperator):
    victim = "Add"

    def wrong(self, node: Node, right: Any) -> Any:
        constant = node.inputs[1] is not None and node.inputs[1].const is not None
        return lambda a, b: right(a, 0 * b if constant else b)


@broken("older_versions")
class KnowsTheNewestOnly(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        return right if node.version >= 13 else np.ceil


@broken("claimed_nodes_run")
class Raises(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        def run(x: np.ndarray) -> Any:
            raise ValueError("not written yet")
        return run


@broken("claimed_nodes_run")
class DoesNotCompile(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        raise NotImplementedError("no Floor yet")


@broken("repeated_runs")
class Drifts(OneOperator):
    def wrong(self, node: Node, right: Any) -> Any:
        turns = [0]

        def run(x: np.ndarray) -> Any:
            turns[0] += 1
            return (right(x) + np.float32(1e-7 * turns[0])).astype(x.dtype)
        return run


@broken("contradictions_are_refused")
class Crops(OneOperator):
    victim = "Add"

    def wrong(self, node: Node, right: Any) -> Any:
        def run(a: np.ndarray, b: np.ndarray) -> Any:
            if a.ndim == b.ndim == 2 and 1 < a.shape[0] < b.shape[0]:
                b = b[:a.shape[0]]
            return right(a, b)
        return run


@broken("chain", "chain_cut_by_another", "diamond", "fan_out", "value_inside_and_outside",
        "part_output_is_graph_output", "constants_in_parts", "random_graphs", "branches")
class WrongInGroups(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel] = super().compile(part)
        if len(part.nodes) == 1:
            return [kernel]
        return [Kernel(lambda *given: tuple(v + 1 for v in kernel.run(*given)), kernel.name)]


@broken("fan_out", "value_inside_and_outside", "part_output_is_graph_output", "random_graphs", "diamond",
        "constants_in_parts")
class MixesOutputs(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel] = super().compile(part)
        return [Kernel(lambda *given: kernel.run(*given)[::-1], kernel.name)]


@broken("branches", "loops")
class WrongInBodies(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        self.inner = getattr(self, "inner", set())
        if view.graph.outer is not None:
            self.inner |= set(view.nodes)
        return super().get_capability(view)

    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel] = super().compile(part)
        if part.nodes[0] in self.inner:
            return [Kernel(lambda *given: tuple(v + 1 for v in kernel.run(*given)), kernel.name)]
        return [kernel]


@broken("loops")
class RemembersTheTurn(Good):
    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.made = threading.local()

    def on_run_start(self) -> None:
        self.made.results = {}

    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel] = super().compile(part)

        def run(*given: Any) -> Any:
            results = self.made.results
            if part.name not in results:
                results[part.name] = kernel.run(*given)
            return results[part.name]
        return [Kernel(run, kernel.name)]


@broken("no_cycles")
class Greedy(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        mine = [c.nodes for c in super().get_capability(view)]
        nodes = [n for group in mine for n in group]
        return [Capability(nodes, "All")] if nodes else []


@broken("capabilities_are_whole")
class TakesWhatIsTaken(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        taken = [n for n in view.graph.nodes if n.op_type in ("Identity", "Where") and n not in view.nodes]
        return [*super().get_capability(view), *(Capability([n], "More") for n in taken)]


@broken("capabilities_are_whole")
class ReturnsTwice(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        return 2 * super().get_capability(view)


@broken("asked_once")
class AsksTwice(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        mine = [n for n in view.nodes if self.claim(n) is None and self.claim(n) is None]
        for node in view.nodes:
            if node not in mine:
                view.refuse(node, No("not in the table"))
        return [Capability(g, "Twice") for g in convex_groups(view.graph, mine)]


@broken("asked_once")
class AsksItself(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        if not getattr(self, "inside", False):
            self.inside = True
            self.get_capability(GraphView(view.graph, list(view.nodes)))
            self.inside = False
        return super().get_capability(view)


@broken("claims_and_capability_agree")
class SaysOneDoesAnother(Good):
    def get_capability(self, view: GraphView) -> list[Capability]:
        nodes = [n for n in view.nodes if n.op_type != "Floor"]
        return super().get_capability(dataclasses.replace(view, nodes=nodes))


@broken("refusals_have_reasons")
class SilentRefusal(Good):
    def claim(self, node: Node) -> No | None:
        return No("") if super().claim(node) is not None else None


class Why:
    """Looks like a refusal."""

    reason = "not in the table"


@broken("claims_answer_none_or_no")
class AnswersOtherwise(Good):
    def claim(self, node: Node) -> Any:
        return Why() if super().claim(node) is not None else None


@broken("claims_do_not_depend_on_order")
class DependsOnOrder(Good):
    asked = 0

    def claim(self, node: Node) -> No | None:
        self.asked += 1
        return super().claim(node) if self.asked <= 40 else No("enough for now")


@broken("claims_change_nothing")
class MarksNodes(Good):
    def claim(self, node: Node) -> No | None:
        node.name = node.name + "!"
        return super().claim(node)


@broken("concurrent_runs")
class NotThreadSafe(Good):
    """Two threads in `Tanh` meet, and both see what the later one left in the kernel."""

    def function(self, node: Node) -> Callable[..., Any]:
        if node.op_type != "Tanh":
            return super().function(node)
        home, barrier, kept = threading.get_ident(), threading.Barrier(2), {}

        def run(x: np.ndarray) -> Any:
            kept["x"] = x
            if threading.get_ident() != home:
                try:
                    barrier.wait(1)
                except threading.BrokenBarrierError:
                    return np.tanh(x)
            return np.tanh(kept["x"])
        return run


@broken("many_sessions")
class SharesConstants(Good):
    last: ClassVar[Any] = threading.local()

    def function(self, node: Node) -> Callable[..., Any]:
        right = FUNCTIONS[node.op_type]
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is None or value.const is None or node.op_type != "Sub":
            return right
        mine = value.const
        self.last.__dict__["const"] = mine
        return lambda a, b: right(a, self.last.__dict__.get("const", mine))


@broken("sessions_on_threads")
class OnlyOnTheMainThread(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the engine belongs to another thread")
        return super().compile(part)


@broken("closed_during_a_run")
class ShutsEverythingDown(Good):
    """The end of one session ends the engine that a run of another one is using."""

    running: ClassVar[set[int]] = set()
    down: ClassVar[set[int]] = set()

    def on_run_start(self) -> None:
        self.running.add(id(self))

    def on_run_end(self) -> None:
        self.running.discard(id(self))

    def __del__(self) -> None:
        self.down |= self.running - {id(self)}

    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel], me = super().compile(part), id(self)

        def run(*given: Any) -> Any:
            if me in self.down:
                self.down.discard(me)
                raise RuntimeError("the engine is shut down")
            return kernel.run(*given)
        return [Kernel(run, kernel.name)]


@broken("after_fork")
class ParentOnly(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel], home = super().compile(part), os.getpid()

        def run(*given: Any) -> Any:
            if os.getpid() != home:
                raise RuntimeError("the device belongs to the parent")
            return kernel.run(*given)
        return [Kernel(run, kernel.name)]


@broken("leaks")
class KeepsBytes(Good):
    kept: ClassVar[list[Any]] = []

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.kept.append(bytearray(20_000))


@broken("leaks")
class KeepsItself(Good):
    kept: ClassVar[list[Any]] = []

    def compile(self, part: Part) -> Sequence[Kernel]:
        self.kept.append(self)
        return super().compile(part)


@broken("leaks")
class KeepsNativeMemory(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        # pages of its own: what malloc gives may be memory that the process has had before
        libc, size = ctypes.CDLL(None), 1 << 17
        libc.mmap.restype = ctypes.c_void_p
        pages = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE,
                          mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
        ctypes.memset(pages, 1, size)
        return super().compile(part)


@broken("unknown_options")
class SwallowsOptions(Good):
    options: ClassVar = {"scale": Option(float, 1.0, "a factor")}

    def __init__(self, options: Any = None) -> None:
        super().__init__({k: v for k, v in (options or {}).items() if k in self.options})


@broken("unknown_options")
class HidesOptions(Good):
    options: ClassVar = {"scale": Option(float, 1.0, "a factor")}

    def __init__(self, options: Any = None) -> None:
        if set(options or {}) - set(self.options):
            raise InvalidArgument("bad options")
        super().__init__(options)


def one_of(text: str) -> str:
    return {"fast": "fast", "exact": "exact"}[text]


@broken("wrong_values")
class RaisesKeyError(Good):
    options: ClassVar = {"precision": Option(one_of, "fast", "fast or exact")}


def lax(text: str) -> int:
    return int(text) if text.isdigit() else 0


@broken("wrong_values")
class TakesAnything(Good):
    options: ClassVar = {"device": Option(lax, 0, "number of the device")}


@broken("option_defaults")
class UnreadableDefault(Good):
    options: ClassVar = {"mode": Option({"slow": 0, "fast": 1}.__getitem__, 1, "slow or fast")}

    def __init__(self, options: Any = None) -> None:
        try:
            super().__init__(options)
        except KeyError as error:
            raise InvalidArgument(f"mode: {error}", expected="mode") from None


@broken("options_are_declared")
class SaysNothing(Good):
    options: ClassVar = {"scale": Option(float, 1.0, " ")}


@broken("options_arrive_as_strings")
class KeepsObjects(Good):
    options: ClassVar = {"scale": Option(float, 1.0, "a factor")}

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.given = dict(options or {})


@broken("options_are_each_instance_s_own")
class SharesSettings(Good):
    options: ClassVar = {"scale": Option(float, 1.0, "a factor")}
    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.shared.update(self.settings)
        self.settings = self.shared


@broken("options_round_trip", "pickled_sessions")
class AddsOptions(Good):
    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.given["instance"] = str(id(self))


@broken("errors_name_the_node", "contradictions_are_refused")
class HidesErrors(Good):
    compiled = False

    def on_run_start(self) -> None:
        self.done = False

    def on_run_end(self) -> None:
        if self.compiled and not self.done:
            raise RuntimeError("the queue is not empty")

    def compile(self, part: Part) -> Sequence[Kernel]:
        [kernel], self.compiled = super().compile(part), True

        def run(*given: Any) -> Any:
            made = kernel.run(*given)
            self.done = True
            return made
        return [Kernel(run, kernel.name)]


@broken("explains")
class Nameless(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        return [Kernel(k.run, " ") for k in super().compile(part)]


@broken("profiles")
class StepsOtherwise(Good):
    def compile(self, part: Part) -> Sequence[Kernel]:
        class Other:
            def __init__(self, run: Any) -> None:
                self.run = run

            def __call__(self, *given: Any) -> Any:
                return self.run(*given)

            def stepwise(self, given: Any, note: Any, watch: Any, check: Any) -> Any:
                return tuple(np.zeros(given[0].shape, given[0].dtype) for _ in part.outputs)
        return [Kernel(Other(k.run), k.name) for k in super().compile(part)]


@broken("probe")
class ProbeRaises(Good):
    @classmethod
    def probe(cls) -> No | None:
        raise OSError("libengine.so: cannot open shared object file")


@broken("probe")
class ProbeSaysNothing(Good):
    @classmethod
    def probe(cls) -> No | None:
        return No("")


@broken("construction")
class NeedsAnOption(Good):
    options: ClassVar = {"device": Option(str, None, "name of the device")}

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        if self.settings["device"] is None:
            raise InvalidArgument("which device?")


@broken("name")
class Misnamed(Good):
    name = "MisnamedProvider"


@broken("operators_are_defined")
class Misspells(Good):
    pass


@Misspells.kernel("Flor")
def floor_kernel(info: Any) -> Any:
    return np.floor


@broken("bare_machine")
class ProbeImports(Good):
    @classmethod
    def probe(cls) -> No | None:
        import hypothesis  # noqa: F401

        return None
