"""What a session computes with, on disk: its parts as models, and the tensors of its runs as arrays.

In: a placement, or a run's steps. Out: `parts/NNN_name.onnx`, each a model that runs by itself, and
`tensors/run_NNN/NNNN_node.npy`, with an `index.json` in either folder that gives every file its part, node,
value and type. Results are not changed by being watched; a compiled part runs its steps one by one.

What is in no file: values that a kernel computes in registers on its way to another, constants, and what
follows from shapes alone. The index of a run lists these as absent.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from .. import knobs
from ..errors import InvalidArgument
from ..ir import Value, shape_text, type_of
from ..kernels import HOST, DeviceArray, Part, copied
from ..load import save
from ..locks import lock
from ..partition import Placement
from ..plan import TRASH, Call
from .executor import Context, Watcher

log = logging.getLogger("orthrus")

FOLDER, WHAT = "orthrus.dump", "orthrus.dump_what"
"""The configuration keys of a session that stand for the switches DUMP and DUMP_WHAT."""

RUNS = 8
"""Runs of a session whose tensors are written; further ones are not."""

FILES = 20_000
"""Files of one run at most: bodies of loops write theirs at each turn."""

_EMBEDDED = 1 << 28
"""Bytes of constants up to which a part holds them in its own file."""

_sessions: Counter[str] = Counter()
_lock = lock()


class Dump:
    """The folders of one session: those named for the first session of a process, `session2` and so on below
    for later ones. Code goes to one folder for all."""

    def __init__(self, folder: str, kinds: frozenset[str]) -> None:
        self.shared, self.kinds = os.path.abspath(folder), kinds
        with _lock:
            _sessions[self.shared] += 1
            count = _sessions[self.shared]
        self.own = self.shared if count == 1 else os.path.join(self.shared, f"session{count}")
        self._runs = itertools.count(1)

    @classmethod
    def asked(cls, entries: Mapping[str, str]) -> Dump | None:
        """What the configuration asks for, else the switches. Raises InvalidArgument for a kind of dump there
        is not."""
        folder = entries.get(FOLDER, knobs.DUMP.value)
        text = entries.get(WHAT, knobs.DUMP_WHAT.value)
        if not folder:
            return None
        try:
            return cls(folder, knobs.dump_kinds(text))
        except ValueError as error:
            raise InvalidArgument(f"what to dump cannot be read: {error}", found=text,
                                  cure=f"correct {WHAT}, or ORTHRUS_DUMP_WHAT") from None

    @property
    def watches_runs(self) -> bool:
        """Whether runs have to come past here."""
        return not self.kinds.isdisjoint({"tensors", "code"})

    def scope(self) -> AbstractContextManager[None]:
        """While it is open, this thread dumps here."""
        return knobs.dumping(self.shared, self.own, self.kinds)

    def parts(self, placement: Placement) -> None:
        """Write every part of `placement` as a model, those of bodies too."""
        if "parts" not in self.kinds:
            return
        folder = _fresh(Path(self.own, "parts"), "[0-9][0-9][0-9]*_*.onnx*")
        index = [_write_part(part, folder, i)
                 for i, part in enumerate(_parts(placement))]
        _write_index(folder, index)

    def watcher(self, inputs: Mapping[str, Any]) -> Watcher:
        """What sees a run, and writes what it computes where that is asked for. `inputs` by name."""
        number = next(self._runs) if "tensors" in self.kinds else RUNS + 1
        if number <= RUNS:
            return _Writing(self, Path(self.own, "tensors", f"run_{number:03d}"), inputs)
        if number == RUNS + 1 and "tensors" in self.kinds:
            log.warning("the tensors of %d runs are in %s; those of further runs are not written", RUNS,
                        self.own)
        return _Scoped(self)


def _fresh(folder: Path, pattern: str) -> Path:
    """`folder`, without the files of an earlier dump."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(pattern):
        old.unlink()
    return folder


def _write_index(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    (folder / "index.json").write_text(json.dumps(rows, indent=1, ensure_ascii=True), encoding="utf-8")


def _parts(placement: Placement) -> Iterator[Part]:
    for part in placement.parts:
        yield part
        for node in part.nodes:
            for body in node.bodies():
                yield from _parts(placement.bodies[body])


def _write_part(part: Part, folder: Path, number: int) -> dict[str, Any]:
    """One part's file, and its row of the index: without a `file`, and with a `reason`, where it cannot be
    written."""
    row: dict[str, Any] = {"part": str(part), "provider": part.provider,
                           "nodes": [node.label for node in part.nodes],
                           "inputs": {v.name: str(v.type) for v in part.inputs},
                           "outputs": {v.name: str(v.type) for v in part.outputs}}
    name = f"{number:03d}_{knobs.file_name(str(part))}.onnx"
    try:
        if untyped := [v.name for v in part.inputs if v.type is None]:
            raise ValueError(f"the type of its input {untyped[0]} is not known")
        model = part.graph()
        held = sum(getattr(v.const, "nbytes", 0) for v in model.initializers.values())
        save(model, folder / name, external_file=f"{name}.data" if held > _EMBEDDED else None)
    except Exception as error:
        log.warning("part %s is not dumped: %s", part, error)
        return {**row, "reason": f"{type(error).__name__}: {error}"}
    return {"file": name, **row}


class _Tensors:
    """A folder of arrays and its index."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self.count = folder, list[dict[str, Any]](), 0

    def write(self, name: str, value: Any, about: Mapping[str, Any]) -> None:
        """Write one value; a sequence as a file for each element."""
        if isinstance(value, list | tuple):
            for i, each in enumerate(value):
                self.write(f"{name}_{i}", each, {**about, "element": i})
            return
        self.count += 1
        if self.count == FILES + 1:
            log.warning("%s has %d files; what the run makes after these is not written", self.folder, FILES)
        if self.count > FILES:
            return
        file = f"{self.count:04d}_{knobs.file_name(name)}.npy"
        row = dict(about)
        if isinstance(value, DeviceArray):
            value = copied(value, HOST)
        try:
            row["type"] = shape_text(type_of(value))
            if not isinstance(value, np.ndarray | np.generic):
                raise TypeError(f"a value of {type(value).__name__} has no file format")
            array = np.asarray(value)
            np.save(self.folder / file, array.astype(np.str_) if array.dtype == object else array,
                    allow_pickle=False)
            row["file"] = file
        except (TypeError, ValueError, OSError) as error:
            row["reason"] = str(error)
        self.rows.append(row)

    def value(self, value: Value, array: Any, step: Call) -> None:
        """Write what a node made."""
        node = value.node or step.node
        several = len([v for v in node.outputs if v is not None]) > 1
        name = f"{node.label}_{value.name}" if several else node.label
        self.write(name, array, {"node": node.label, "op_type": node.op_type, "value": value.name,
                                 "provider": step.part.provider, "part": step.part.name,
                                 "kernel": step.kernel.name})

    def absent(self, value: Value, step: Call) -> None:
        node = value.node or step.node
        self.rows.append({"node": node.label, "op_type": node.op_type, "value": value.name,
                          "part": step.part.name, "reason": "never in memory: it is computed inside a later "
                          "node's kernel, or follows from shapes alone"})

    def finish(self) -> None:
        _write_index(self.folder, self.rows)


class _Scoped(Watcher):
    """A run whose code goes to the dump."""

    def __init__(self, dump: Dump) -> None:
        self.scope = dump.scope()

    def __enter__(self) -> None:
        self.scope.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.scope.__exit__(*error)


class _Writing(_Scoped):
    """A run whose values are written as they are made, in bodies of control flow too."""

    def __init__(self, dump: Dump, folder: Path, inputs: Mapping[str, Any]) -> None:
        super().__init__(dump)
        self.inputs, self.writer = inputs, _Tensors(folder)

    def __enter__(self) -> None:
        super().__enter__()
        folder = self.writer.folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, value in self.inputs.items():
            self.writer.write(f"input_{name}", value, {"input": name})

    def __exit__(self, *error: Any) -> None:
        self.writer.finish()
        super().__exit__(*error)

    def before(self, call: Call, slots: list[Any]) -> set[Value]:
        return set()

    def inside(self, call: Call, context: Context, seen: set[Value], *given: Any) -> Any:
        def watch(value: Value, array: np.ndarray) -> None:
            if value not in seen:
                seen.add(value)
                self.writer.value(value, array, call)
        assert call.kernel.stepwise is not None
        return call.kernel.stepwise(given, None, watch, context.check)

    def after(self, call: Call, slots: list[Any], seen: set[Value]) -> None:
        writes = call.part.outputs if call.part.fused else call.node.outputs
        for value, slot in zip(writes, call.writes, strict=False):
            if value is not None and slot > TRASH and value not in seen:
                seen.add(value)
                self.writer.value(value, slots[slot], call)
        if call.part.fused:
            for value in (v for node in call.part.nodes for v in node.outputs):
                if value is not None and not value.dead and value not in seen:
                    self.writer.absent(value, call)
