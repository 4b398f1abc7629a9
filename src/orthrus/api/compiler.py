"""`ModelCompiler`: a model in, the same model with its compiled parts inside out.

Parts are compiled by those providers that the session options name and that can store them; where there is
none, what is made is, as in onnxruntime, the model itself at the asked optimization level.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import Fail, InvalidArgument
from .core import path_of
from .enums import GraphOptimizationLevel, OrtCompileApiFlags
from .metadata import OrtEpContextData, OrtExternalInitializerInfo
from .options import SessionOptions
from .ortvalue import OrtValue
from .values import CoreValue

GetInitializerLocationFunc = Callable[[str, OrtValue, OrtExternalInitializerInfo | None],
                                      OrtExternalInitializerInfo | None]
"""Called with an initializer's name, tensor and present place; answers its new place, None to keep it in the
model."""

GetInitializerLocationWrapperFunc = Callable[
    [str, CoreValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None]


def make_get_initializer_location_func_wrapper(get_initializer_location_func: GetInitializerLocationFunc
                                               ) -> GetInitializerLocationWrapperFunc:
    """The function with a value of the capi layer in place of the OrtValue."""
    def wrapper(name: str, value: CoreValue, external: OrtExternalInitializerInfo | None
                ) -> OrtExternalInitializerInfo | None:
        return get_initializer_location_func(name, OrtValue(value), external)
    return wrapper


class ModelCompiler:
    """Compiles a model to a file, to bytes or to a function."""

    def __init__(self, sess_options: SessionOptions,
                 input_model_path_or_bytes: str | os.PathLike[str] | bytes,
                 embed_compiled_data_into_model: bool = False,
                 external_initializers_file_path: str | os.PathLike[str] | None = None,
                 external_initializers_size_threshold: int = 1024,
                 flags: int = OrtCompileApiFlags.NONE,  # type: ignore[assignment]
                 graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
                 get_initializer_location_func: GetInitializerLocationFunc | None = None) -> None:
        """`external_initializers_file_path`: a file beside the output that takes tensors of at least
        `external_initializers_size_threshold` bytes; or `get_initializer_location_func` decides on each.

        Raises TypeError for anything that is no model, ValueError for both ways of placing tensors at once.
        """
        if not isinstance(sess_options, SessionOptions):
            raise TypeError("__init__(): incompatible constructor arguments. The following argument types "
                            f"are supported:\n    1. ModelCompiler(arg0: SessionOptions, ...)\n\nInvoked "
                            f"with: {sess_options!r}")
        self._path = path_of(input_model_path_or_bytes)
        self._source = self._path if self._path is not None else input_model_path_or_bytes
        if self._path is None and isinstance(self._source, bytes) and not self._source:
            raise ValueError("Input model bytes array is empty")
        if self._path == "":
            raise ValueError("Input model path is empty")
        if get_initializer_location_func is not None and external_initializers_file_path is not None:
            raise ValueError("Cannot initialize ModelCompiler with both "
                             "`external_initializers_file_path` and `get_initializer_location_func`")
        self._locate: GetInitializerLocationWrapperFunc | None = None
        if get_initializer_location_func is not None:
            self._locate = make_get_initializer_location_func_wrapper(get_initializer_location_func)
        self._options, self._level, self._flags = sess_options, graph_optimization_level, int(flags)
        self._embed = embed_compiled_data_into_model
        self._external = None if external_initializers_file_path is None else os.fspath(
            external_initializers_file_path)
        self._threshold = external_initializers_size_threshold
        self._write_context: Callable[[str, OrtEpContextData], None] | None = None
        self._binaries: tuple[str, str] | None = None

    def compile_to_file(self, output_model_path: str | None = None) -> None:
        """Write the model, by default beside the input as `<name>_ctx.onnx`.

        Raises Fail where the file exists and that is an error, where no node was compiled and that is one,
        and what a function of the user's raises; InvalidArgument where the model is not there and where no
        file can be put; what loading the model raises; ValueError for a model from bytes without a path.
        """
        if output_model_path is None:
            if self._path is None:
                raise ValueError("output_model_path is needed for a model that came as bytes")
            output_model_path = os.path.splitext(self._path)[0] + "_ctx.onnx"
        path = os.fspath(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(path):
            raise Fail(f"Failed to generate EP context model since the file '{path}' exists already. Please "
                       "remove the EP context model if you want to re-generate it.")
        graph, files = self._graph(path)
        for name, data in files.items():
            with open(os.path.join(os.path.dirname(os.path.abspath(path)), name), "wb") as file:
                file.write(data)
        from ..load import save
        from ..load.write import put

        if self._locate is not None:
            put(path, self._placed(graph))
        elif self._external is None:
            save(graph, path)
        else:
            save(graph, path, external_file=os.path.basename(self._external),
                 external_threshold=self._threshold)

    def compile_to_bytes(self) -> bytes:
        """The model as bytes. Raises as `compile_to_file`, and ValueError where tensors should go to a
        file."""
        if self._external is not None:
            raise ValueError("external_initializers_file_path needs compile_to_file, which has a folder for "
                             "it")
        graph, _ = self._graph(None)
        if self._locate is not None:
            return self._placed(graph)
        from ..load import save

        return save(graph)

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        """Hand the model to `write_function`. Raises as `compile_to_bytes`, and Fail where the function
        raises."""
        model = self.compile_to_bytes()
        try:
            write_function(model)
        except Exception as error:
            raise Fail(f"{type(error).__name__}: {error}") from error

    def set_ep_context_data_write_func(self, write_func: Callable[[str, OrtEpContextData], None]) -> None:
        """How the data of compiled parts is written: called with each one's file name and data, in the place
        of a file beside the model."""
        self._write_context = write_func

    def clear_ep_context_data_write_func(self) -> None:
        self._write_context = None

    def set_ep_context_binary_information(self, output_directory: str | os.PathLike[str], model_name: str
                                          ) -> None:
        """Where files of compiled parts are put for a model that is compiled to bytes or a function, and what
        their names begin with.

        Raises InvalidArgument where one of them is empty, or the first is no folder.
        """
        folder = os.fspath(output_directory)
        if not folder or not model_name:
            raise InvalidArgument("Output directory and model name must not be empty",
                                  found=f"{folder!r} and {model_name!r}")
        if not os.path.isdir(folder):
            raise InvalidArgument("The output directory is no folder", found=folder, cure="make it first")
        self._binaries = folder, model_name

    def _graph(self, path: str | None) -> tuple[Any, dict[str, bytes]]:
        """The graph with its compiled parts, and the files beside it by name: none where the data is embedded
        or goes to the user's function. `path`: where the model is going, None for bytes."""
        if self._path is not None and not os.path.exists(self._path):
            raise InvalidArgument(f'Input model path does not exist: "{self._path}"')
        from ..providers import CPUExecutionProvider
        from ..providers.trust import Signer
        from ..run.ep_context import placed_and_compiled, with_contexts
        from .core import CoreSession

        session = CoreSession(self._options, self._source, self._path is not None, False)
        asked = {p.name: p for p in session._create_providers(session._providers_of_options())}
        last = asked.pop(CPUExecutionProvider.name, None) or CPUExecutionProvider({"use_codegen": "0"})
        placement, compiled = placed_and_compiled(
            self._source, [*asked.values(), last], int(self._level),
            free_dims=self._options._dims_by_name, signer=Signer.asked(self._options._entries),
            denotations=self._options._dims_by_denotation)
        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED and not compiled.stored:
            raise Fail("Unable to compile any nodes. Check that the session EPs support compilation and can "
                       "execute at least one subgraph in the model.", found="; ".join(
                           compiled.refused.values()) or None)
        elsewhere = self._binaries if path is None and self._write_context is None else None
        embedded = self._embed or (path is None and self._write_context is None and elsewhere is None)
        named = self._binaries[1] if self._binaries else os.path.basename(path or "model")
        stem = None if embedded else os.path.splitext(named)[0]
        graph, files = with_contexts(placement, compiled.stored, stem)
        if self._write_context is not None:
            for name, data in files.items():
                self._write_context(name, OrtEpContextData._make(data))
            files = {}
        if elsewhere is not None:
            for name, data in files.items():
                with open(os.path.join(elsewhere[0], name), "wb") as file:
                    file.write(data)
        return graph, files

    def _placed(self, graph: Any) -> bytes:
        """The model with each initializer where the function puts it."""
        from ..load import to_model_proto
        from ..load.external import places

        assert self._locate is not None
        arrays = {name: value.initial for name, value in graph.initializers.items()}
        before = places(self._source)
        model = to_model_proto(graph)
        for tensor in model.graph.initializer:
            if tensor.name not in arrays:
                continue
            array, now = arrays[tensor.name], None
            if tensor.name in before:
                file, offset, size, same = before[tensor.name]
                if (same.dtype, same.shape, same.tobytes()) == (array.dtype, array.shape, array.tobytes()):
                    now = OrtExternalInitializerInfo(file, offset, size)
            try:
                place = self._locate(tensor.name, CoreValue._got(array), now)
            except Exception as error:
                raise Fail(f"{type(error).__name__}: {error}", found=f"initializer {tensor.name}") from error
            if place is None:
                continue
            if not isinstance(place, OrtExternalInitializerInfo):
                raise Fail("get_initializer_location_func answered what is no place", found=repr(place),
                           expected="an OrtExternalInitializerInfo or None")
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
            tensor.data_location = 1
            for key, value in (("location", place.filepath), ("offset", place.file_offset),
                               ("length", place.byte_size)):
                tensor.external_data.add(key=key, value=str(value))
        raw: bytes = model.SerializeToString()
        return raw
