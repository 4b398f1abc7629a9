"""The process that compiles: a crash of the compiler ends it, and not the session's process.

In: the compiler's flags as arguments, of which some are read once in a process only; a job per line of
standard input, as JSON: `model`, the path of an ONNX file; `output`, where the compiled module goes; `mlir`,
where the imported module goes, or null. Out: a line of JSON each: {"ok": true} with the seconds of both
steps, or {"ok": false} with the `stage` that failed, its `message`, and whether it would fail again
(`lasting`). What the compiler writes goes to standard error. Standard input's end ends the process, and so
does much memory held.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from functools import cache
from typing import Any

_FULL = 3 << 20
"""KiB of memory after which a worker makes room for a new one."""


def main() -> None:
    """Serve jobs until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        reply = _served(json.loads(line))
        reply["last"] = _held() > _FULL
        print(json.dumps(reply), file=replies, flush=True)
        if reply["last"]:
            return


def _held() -> int:
    """The most memory this process has had, in KiB; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most >> 10 if sys.platform == "darwin" else most


def _served(job: dict[str, Any]) -> dict[str, Any]:
    stage, start = "import", time.perf_counter()
    try:
        module = imported(job["model"], job["mlir"])
        stage, between = "compile", time.perf_counter()
        _compile(module, job["output"])
    except Exception as error:
        return {"ok": False, "stage": stage, "message": f"{type(error).__name__}: {error}",
                "lasting": not isinstance(error, OSError | MemoryError)}
    return {"ok": True, "import_seconds": between - start, "compile_seconds": time.perf_counter() - between}


def imported(path: str, keep: str | None) -> bytes:
    """The ONNX file at `path` as MLIR bytecode; as text in the file `keep` too, where one is named."""
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    info = onnx_importer.ModelInfo(onnx.load(path))
    module = info.create_module(context=Context()).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    if keep is not None:
        with open(keep, "w", encoding="utf-8") as text:
            text.write(module.get_asm(assume_verified=True))
    stream = io.BytesIO()
    module.write_bytecode(stream)
    return stream.getvalue()


@cache
def _started() -> None:
    """Hand the compiler its flags. A wrong one ends the process."""
    from iree.compiler import api

    api._initializeGlobalCL("iree-compile", *sys.argv[1:])


def _compile(module: bytes, output: str) -> None:
    from iree.compiler import api

    _started()
    with api.Session() as session, session.invocation() as invocation:
        invocation.enable_console_diagnostics()
        if not invocation.parse_source(api.Source.wrap_buffer(session, module)):
            raise ValueError("the imported module does not verify")
        if not invocation.execute():
            raise ValueError("the compiler refuses the module")
        with api.Output.open_membuffer() as made:
            invocation.output_vm_bytecode(made)
            with open(output, "wb") as file:
                file.write(made.map_memory())


if __name__ == "__main__":
    main()
