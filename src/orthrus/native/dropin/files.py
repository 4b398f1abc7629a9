"""What the compile service is asked of files and of bytes, without a session.

In: a path, "" for none, and bytes. Out: what is in them, as asked.c and compile.c read it.
"""

from __future__ import annotations

from ...api.adapter import CoreAdapter, _read
from ...api.compiler import ModelCompiler
from ...api.enums import GraphOptimizationLevel
from ...api.environment import get_compatibility_info_from_model, get_compatibility_info_from_model_bytes
from ...errors import InvalidArgument
from .models import options_of
from .wire import Reader, Writer


def compatibility(reader: Reader, writer: Writer) -> None:
    """What a compiled model says of the provider's version that it is for, if anything."""
    path, data, provider = reader.text(), reader.raw(), reader.text()
    found = (get_compatibility_info_from_model(path, provider) if path
             else get_compatibility_info_from_model_bytes(data, provider))
    writer.number(found is not None)
    writer.text(found or "")


def adapter(reader: Reader, writer: Writer) -> None:
    """An adapter's tensors by name. Raises InvalidArgument for what is none."""
    path, data = reader.text(), reader.raw()
    try:
        parameters = (CoreAdapter.read_adapter(path) if path else _read(data)).parameters
    except RuntimeError as error:
        raise InvalidArgument(str(error)) from error
    writer.number(len(parameters))
    for name, value in parameters.items():
        writer.text(name)
        writer.value(value._given())


def compiled(reader: Reader, writer: Writer) -> None:
    """A model with its compiled parts: in a file, or in the answer where that is asked for. Raises what
    the compiler raises."""
    options = options_of(reader)
    path, data = reader.text(), reader.raw()
    embed, flags, level = bool(reader.number()), reader.number(), GraphOptimizationLevel(reader.number())
    external, threshold, out, in_answer = reader.text(), reader.number(), reader.text(), reader.number()
    compiler = ModelCompiler(options, path or data, embed, external or None, threshold, flags, level)
    if in_answer:
        writer.raw(compiler.compile_to_bytes())
    else:
        compiler.compile_to_file(out or None)
        writer.raw(b"")
