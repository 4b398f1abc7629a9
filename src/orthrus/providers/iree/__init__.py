"""IREEExecutionProvider: parts go through ONNX, MLIR and IREE's compiler, and run through its runtime.

In: parts of a graph. Out: kernels. Compiling needs `iree-base-compiler`, running `iree-base-runtime` alone:
a part that was compiled before comes from a cache or out of the model. A part that does not compile goes to
the next provider, with the compiler's message as the reason. Nothing of IREE is imported before it is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import EPFail, InvalidArgument
from ...ir import No, Node, TensorType, Value
from ...kernels import Gate, Kernel, Part, Stored
from ..base import Capability, ExecutionProvider, GraphView, Option
from ..ep_node import is_context
from ..foreign.fixed import Engine, FixedShapes, is_open
from ..foreign.shapes import Shapes
from . import claims, settings
from .compiler import COMPILER, RUNTIME, Job, build, installed
from .program import CROSSING, LoadedModule

VERSIONS = ("3.13.",)
"""Beginnings of the versions that the table of operators and the runtime's interface were tried with."""

_ENGINE = Engine("IREE", "the option shapes=open, which lets such a part go to another provider")
_UPDATES = ("TopK", "ScatterND", "ScatterElements", "Scatter", "TensorScatter")
"""Operators that IREE computes where their input lies, be it the caller's."""


class IREEExecutionProvider(ExecutionProvider):
    """Whole parts by IREE: on this processor, for other ones, and on GPUs by vulkan, cuda or hip."""

    name = "IREEExecutionProvider"
    fuses = True
    level = 1
    options: ClassVar[dict[str, Option]] = settings.OPTIONS
    target_option = "target_triple"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        if self.settings["device"] == "hip" and not self.settings["target_cpu"]:
            raise InvalidArgument("the device hip needs a chip to compile for", expected="target_cpu=gfx942",
                                  cure="set the option target_cpu to what rocminfo calls the device")

    @classmethod
    def probe(cls) -> No | None:
        """Whether the runtime is installed, in a version that was tried. The compiler is looked for when a
        part has to be compiled."""
        for package, needed in ((RUNTIME, True), (COMPILER, False)):
            found = installed(package)
            if found is None and needed:
                return No(f"the package {package} is not installed; pip install orthrus-runtime[iree]")
            if found is not None and not found.startswith(VERSIONS):
                return No(f"{package} {found} is installed; tried was {VERSIONS[-1]}*")
        return None

    @property
    def runs_on(self) -> str:
        """The name of the device that parts run on."""
        return settings.chosen_device(self.settings, self.threads)

    def claim(self, node: Node) -> No | None:
        """None for a node that the table of operators speaks for."""
        if node.has_bodies:
            return No("control flow stays with the runtime; its bodies are partitioned themselves")
        if any(v is not None and not (isinstance(v.type, TensorType) and v.elem is not None)
               for v in (*node.inputs, *node.outputs)):
            return No("the type of an input or output is not known to be a tensor's")
        if any(v is not None and v.shape is None for v in (*node.inputs, *node.outputs)):
            return No("the rank of an input or output is not known")
        if node.op_type in claims.SLOW and not settings.elsewhere(self.settings, self.runs_on):
            return No("IREE steps through a sequence in small kernels, and the CPU provider is faster")
        return claims.judged(node, sized=self.settings["shapes"] == "fixed")

    def get_capability(self, view: GraphView) -> list[Capability]:
        """The nodes claimed, in convex parts whose borders only values cross that the runtime can carry."""
        found = []
        for capability in super().get_capability(view):
            if (why := _border(capability.nodes)) is None:
                found.append(capability)
                continue
            for node in capability.nodes:
                view.refuse(node, why)
        return found

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel, or why there is none."""
        if settings.foreign(self.settings):
            return [No("compiled for another machine, parts do not run here; orthrus compile keeps them")]
        if self.settings["shapes"] == "fixed" and is_open(part):
            made = FixedShapes(part, self._made, _ENGINE)
            concurrent = self.runs_on != "local-sync"
            return [Kernel(made if concurrent else made.__call__,
                           f"IREE for {len(part.nodes)} nodes, compiled for each shape")]
        return [self._made(part)]

    def _made(self, part: Part) -> Kernel | No:
        """The kernel of a part that is compiled now."""
        module = self.module(part)
        return module if isinstance(module, No) else self._kernel(part, module)

    def store(self, part: Part) -> Stored | No:
        """The compiled module of `part`, with the version and the target it was made for."""
        if self.settings["shapes"] == "fixed" and is_open(part):
            return No("its shapes are open; orthrus compile --dim NAME=SIZE fixes them")
        module = self.module(part)
        if isinstance(module, No):
            return module
        try:
            data = module.read_bytes()
        except OSError as error:
            return No(f"the compiled part cannot be read: {error}")
        return Stored(data, f"iree {installed(COMPILER) or installed(RUNTIME)}",
                      settings.target_text(self.settings, self.runs_on))

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        """The kernel of a module that `store` gave. The runtime alone is enough."""
        version = f"iree {installed(RUNTIME)}"
        if stored.version.split(".")[:2] != version.split(".")[:2]:
            return No(f"it was compiled by {stored.version or 'an unnamed version'}, and {version} is here")
        if why := settings.unfit(stored.target, self.runs_on):
            return No(f"it was compiled for {stored.target or 'an unnamed machine'}, and {why}")
        try:
            with tempfile.NamedTemporaryFile(suffix=".vmfb") as file:
                file.write(stored.data)
                file.flush()
                return self._kernel(part, Path(file.name))
        except OSError as error:
            return No(f"the compiled part cannot be written where it can be mapped: {error}")

    def module(self, part: Part) -> Path | No:
        """The compiled module's file, from the cache where it is there."""
        from ..foreign.model import model_bytes
        from .convolutions import spelled

        if (why := _border(part.nodes)) is not None:
            return why
        model = model_bytes(part)
        if isinstance(model, No):
            return model
        given, found = self.settings, list[No]()
        for way, flags in settings.trials(given, self.runs_on, part.nodes):
            written = model if way == settings.PLAIN else spelled(model, way == settings.BLOCKS)
            if written is None:
                continue
            made = build(Job(str(part), written, flags, given["compile_timeout"], given["cache_folder"],
                             given["save_temps"]))
            if not isinstance(made, No):
                return made
            found.append(made)
            if "compile failed" not in made.reason:
                break
        return found[0] if found else No("a convolution of a kind that is not computed on blocks of channels")

    def _kernel(self, part: Part, module: Path) -> Kernel:
        kinds = [_elem(v) for v in part.inputs]
        program = LoadedModule(module, self.runs_on, [_elem(v) for v in part.outputs], self.threads,
                          any(node.op_type in _UPDATES or is_context(node) for node in part.nodes))
        shapes, gate = Shapes(part, "IREE"), Gate(part.inputs, ranked=True)

        def start(*given: np.ndarray) -> Callable[[], Any]:
            arrays = gate(given)
            expected = shapes.expected(arrays)
            wait = program.start(arrays, kinds)

            def finish() -> Any:
                made = wait()
                shapes.check(made, expected, arrays)
                return made[0] if len(made) == 1 else tuple(made)
            return finish
        run = Started(start)
        concurrent = self.runs_on != "local-sync"
        return Kernel(run if concurrent else run.__call__, f"IREE for {len(part.nodes)} nodes")


class Started:
    """A part that works on its own once it is begun: `start(*inputs)` gives a function that waits for it."""

    def __init__(self, start: Callable[..., Callable[[], Any]]) -> None:
        self.start = start

    def __call__(self, *arrays: np.ndarray) -> Any:
        return self.start(*arrays)()


def _elem(value: Value) -> Any:
    if value.elem not in CROSSING:
        raise EPFail(f"a value of type {value.type} cannot come into or out of a compiled part", node=value)
    return value.elem


def _border(nodes: Sequence[Node]) -> No | None:
    """Why a value cannot cross the border: its type has no whole bytes, or no name in the runtime."""
    inside = set(nodes)
    crossing = [v for node in nodes for v in node.inputs
                if v is not None and v.const is None and v.node not in inside]
    crossing += [v for node in nodes for v in node.outputs
                 if v is not None and (v.graph_outputs or any(use not in inside for use in v.uses))]
    for value in crossing:
        if value.elem not in CROSSING:
            return No(f"{value.name} is a {value.type}, which IREE's runtime cannot be handed")
    return None
