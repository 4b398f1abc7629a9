"""A written model and settings in, the file of a compiled program out: cached on disk, made in another
process.

A program's name is a digest of all that its content depends on; it is used only from a folder of this user's
and only where its own digest, kept beside it, is right. The library is asked to parse and compile in a
process that may die and is given a limit of time; what it says then is the reason why there is no program."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import knobs
from ...ir import No
from ...kernels import Part
from ...records import dataclass
from ..foreign import kept as store
from ..foreign.process import Process
from .calibration import Ranges
from .model import Written, written

log = logging.getLogger("orthrus")

ENGINE = "migraphx"
_TOLD = 4000
"""Characters of the library's message that a refusal repeats."""
_OPTIONS = ("target", "device_id", "fp16_enable", "bf16_enable", "fp8_enable", "int8_enable",
            "exhaustive_tune",
            "fast_math")
"""Settings that a compiled program depends on."""
_LARGEST = 1 << 40
_HINT = "ORTHRUS_REPRODUCE=FOLDER keeps what is needed to see it"


@dataclass(frozen=True)
class Order:
    """What to compile a part with: the settings, the library's version, whether it takes host's memory,
    ranges of tensors where products are quantized, and for each input whose sizes stay open, by its place,
    the smallest and the largest of each."""

    settings: Mapping[str, Any]
    version: str
    offload: bool = True
    ranges: Ranges | None = None
    open: Mapping[int, Sequence[tuple[int, int]]] | None = None


@dataclass(frozen=True)
class Compiled:
    """A compiled program's file, and the places of the part's inputs that it reads as i0, i1 …"""

    file: Path
    reads: tuple[int, ...]


def build(part: Part, order: Order) -> Compiled | No:
    """The compiled program of `part`; `No` with the library's words where there is none. A refusal is kept as
    well, and the part not tried again with the same options and library."""
    given = order.settings
    try:
        folder = Path(store.temporary(ENGINE)) if given["disable_caching"] else store.private(
            given["model_cache_dir"] or given["cache_dir"], ENGINE)
        with tempfile.TemporaryDirectory(dir=folder, prefix="part-") as work:
            model = written(part, Path(work), order.ranges if given["int8_enable"] else None,
                            order.offload)
            if isinstance(model, No):
                return model
            if given["dump_subgraphs"]:
                _dump(part, model, Path(work))
            kept = folder / f"{_key(model, part, order)}.mxr"
            if not given["force_recompile"] and store.sound(kept):
                return Compiled(kept, model.reads)
            if not knobs.REPRODUCE and not given["force_recompile"] and (told := _refused(kept)) is not None:
                return No(told)
            return _built(part, model, order, Path(work), kept)
    except OSError as error:
        return No(f"a compiled part cannot be written: {error}; the option model_cache_dir names another"
                  " place")


def _key(model: Written, part: Part, order: Order) -> str:
    told = [model.digest, order.version, order.offload, [str(v.type) for v in part.inputs],
            sorted((order.open or {}).items()),
            [order.settings[name] for name in _OPTIONS],
            sorted((order.ranges or {}).items()) if order.settings["fp8_enable"] else None]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=20).hexdigest()


def _built(part: Part, model: Written, order: Order, work: Path, kept: Path) -> Compiled | No:
    given, source, made = order.settings, work / "part.onnx", work / "part.mxr"
    source.write_bytes(model.model)
    names = {i: f"i{i}" for i in model.reads}
    job = {"model": str(source), "folder": str(work), "output": str(made), "target": given["target"],
           "device": given["device_id"], "offload": order.offload, "fast_math": given["fast_math"],
           "exhaustive_tune": given["exhaustive_tune"], "fp16": given["fp16_enable"],
           "bf16": given["bf16_enable"],
           "fp8": {f"i{i}": (order.ranges or {}).get(part.inputs[i].name, 1.0) for i in model.reads}
           if given["fp8_enable"] else None,
           "dims": {names[i]: list(part.inputs[i].shape) for i in model.reads if part.inputs[i].shape},
           "ranges": {names[i]: [list(side) for side in sides] for i, sides in (order.open or {}).items()
                      if i in names}}
    start = time.perf_counter()
    reply, said = _process.compile(job, [given["module_path"]], given["compile_timeout"])
    if reply.get("ok"):
        why = _unlike(reply["outputs"], part)
        if why is None:
            log.debug("MIGraphX compiled %s in %.1f s", part, time.perf_counter() - start)
            store.keep(made, kept)
            return Compiled(kept, model.reads)
        reply = {"stage": "parse", "message": why, "lasting": True}
    message = f"MIGraphX's {reply['stage']} failed: " + "\n".join(
        filter(None, (reply["message"], said[-400:].strip())))[:_TOLD]
    if reply.get("lasting"):
        kept.with_suffix(".refused").write_text(message, encoding="utf-8")
    where = _keep(part, work, message)
    return No(f"{message}\n" + (f"reproducer: {where}" if where else _HINT))


def _unlike(outputs: list[Any], part: Part) -> str | None:
    """How what the library would compute differs from the part's outputs: it leaves out what it does not
    know."""
    if len(outputs) != len(part.outputs):
        return f"{len(outputs)} outputs were found, and {len(part.outputs)} are needed"
    for value, (kind, sides) in zip(part.outputs, outputs, strict=True):
        if kind != TYPES.get(value.elem.text):
            return f"{value.name} is {kind}, and has to be {value.elem.text}"
        shape = list(value.shape or ()) or [1]
        fits = len(sides) == len(shape) and all(
            high < _LARGEST and (low == high == size or not isinstance(size, int))
            for size, (low, high) in zip(shape, sides, strict=True))
        if not fits:
            return f"{value.name} is of {sides}, and has to be {value.type}"
    return None


TYPES = {"bool": "bool_type", "float16": "half_type", "float": "float_type", "double": "double_type",
         "bfloat16": "bf16_type", **{name: f"{name}_type" for name in (
             "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}}
"""The library's names for element types."""


def trace(program: Path, arrays: Mapping[str, Path], results: Sequence[Path], settings: Mapping[str, Any]
          ) -> tuple[dict[str, Any], str]:
    """Run a program in a process of its own, with the library's own times as text."""
    job = {"program": str(program), "inputs": {name: str(path) for name, path in arrays.items()},
           "outputs": list(map(str, results)), "target": settings["target"], "device": settings["device_id"]}
    return _tracing.compile(job, [settings["module_path"]], settings["compile_timeout"],
                            {"MIGRAPHX_TRACE_EVAL": "1"})


def _refused(kept: Path) -> str | None:
    """The library's message about a part that it could not compile, None where it was not asked yet."""
    try:
        return f"{kept.with_suffix('.refused').read_text(encoding='utf-8')}\n{_HINT}"
    except (OSError, ValueError):
        return None


def _keep(part: Part, work: Path, message: str) -> Path | None:
    """Copy what a part was compiled from into the folder for reproducers, where there is one."""
    if not knobs.REPRODUCE:
        return None
    place = Path(knobs.REPRODUCE.value).absolute() / knobs.file_name(str(part))
    try:
        shutil.copytree(work, place, dirs_exist_ok=True)
        (place / "message.txt").write_text(message, encoding="utf-8")
    except OSError as error:
        log.warning("what %s was compiled from is not kept: %s", part, error)
        return None
    return place


def _dump(part: Part, model: Written, work: Path) -> None:
    """Write a part's model with its weights to the working folder, and its operators to the log."""
    import onnx

    whole = onnx.ModelProto.FromString(model.model)
    onnx.external_data_helper.load_external_data_for_model(whole, str(work))
    made = work / "dump.onnx"
    onnx.save(whole, made)
    place = Path(f"{knobs.file_name(str(part))}.onnx").absolute()
    shutil.copy(made, work / place.name)
    shutil.move(work / place.name, place)
    log.info("MIGraphX gets %s: %s", place, ", ".join(sorted({node.kind for node in part.nodes})))


_process = Process(f"{__package__}.worker")
_tracing = Process(f"{__package__}.worker")
