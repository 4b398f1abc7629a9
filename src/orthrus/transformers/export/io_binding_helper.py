"""A session on torch's tensors: types in torch's, numpy's and ONNX's terms, and bindings without copies.

A tensor that is bound is contiguous and lies on the device that is named; it is the caller's, and holds the
result after a run.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidArgument

if TYPE_CHECKING:
    import torch

ShapeDict = Mapping[str, tuple | list[int]]
"""A shape by the name of an input or an output."""
logger = logging.getLogger(__name__)

_ONNX_TYPES = {"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
               "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16}
_NAMES = {"float": "float32", "double": "float64"}
_WITHOUT_NUMPY = ("bfloat16",)


def _element(ort_type: str) -> str:
    element = ort_type.removeprefix("tensor(").removesuffix(")")
    if element not in _ONNX_TYPES or f"tensor({element})" != ort_type:
        raise ValueError(f"{ort_type} not found in map")
    return element


class TypeHelper:
    """A type in one library's terms → another's. ValueError for one the other has not."""

    @staticmethod
    def get_input_type(ort_session: Any, name: str) -> str:
        """The type of an input, `tensor(int64)`."""
        return _typed(ort_session.get_inputs(), name, "input")

    @staticmethod
    def get_output_type(ort_session: Any, name: str) -> str:
        """The type of an output, `tensor(float)`."""
        return _typed(ort_session.get_outputs(), name, "output")

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """`tensor(float)` → numpy.float32."""
        name = _NAMES.get(_element(ort_type), _element(ort_type))
        if name in _WITHOUT_NUMPY:
            raise ValueError(f"{ort_type} not found in map")
        return bool if name == "bool" else getattr(np, name)

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """`tensor(float)` → torch.float32."""
        import torch

        return getattr(torch, _NAMES.get(_element(ort_type), _element(ort_type)))

    @staticmethod
    def get_io_onnx_type_map(ort_session: Any) -> dict[str, int]:
        """ONNX's type by the names of inputs and outputs."""
        return _mapped(ort_session, TypeHelper.ort_type_to_onnx_type)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """`tensor(float)` → TensorProto.FLOAT."""
        return _ONNX_TYPES[_element(ort_type)]

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """numpy.float32 → torch.float32."""
        import torch

        found = getattr(torch, np.dtype(numpy_type).name, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{numpy_type} not found in map")
        return found

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        """torch.float32 → numpy.float32."""
        name = str(torch_type).removeprefix("torch.")
        if name in _WITHOUT_NUMPY or name not in {_NAMES.get(each, each) for each in _ONNX_TYPES}:
            raise ValueError(f"{torch_type} not found in map")
        return bool if name == "bool" else getattr(np, name)

    @staticmethod
    def get_io_numpy_type_map(ort_session: Any) -> dict[str, Any]:
        """numpy's type by the names of inputs and outputs."""
        return _mapped(ort_session, TypeHelper.ort_type_to_numpy_type)

    @staticmethod
    def get_io_torch_type_map(ort_session: Any) -> dict[str, Any]:
        """torch's type by the names of inputs and outputs."""
        return _mapped(ort_session, TypeHelper.ort_type_to_torch_type)


def _typed(values: Sequence[Any], name: str, side: str) -> str:
    for each in values:
        if each.name == name:
            return str(each.type)
    raise ValueError(f"{side} name {name} not found; there are {', '.join(each.name for each in values)}")


def _mapped(session: Any, convert: Any) -> dict[str, Any]:
    return {each.name: convert(each.type) for each in (*session.get_inputs(), *session.get_outputs())}


class IOBindingHelper:
    """Bindings of a decoder with a cache: `input_ids`, `position_ids`, `attention_mask`, `past_0`, ..."""

    @staticmethod
    def get_output_buffers(ort_session: Any, output_shapes: ShapeDict, device: Any) -> dict[str, Any]:
        """A flat tensor for each output, as large as its shape says."""
        import torch

        types = TypeHelper.get_io_torch_type_map(ort_session)
        return {name: torch.empty(int(np.prod(shape)), dtype=types[name], device=device)
                for name, shape in output_shapes.items()}

    @staticmethod
    def prepare_io_binding(ort_session: Any, input_ids: torch.Tensor, position_ids: torch.Tensor | None,
                           attention_mask: torch.Tensor | None, past: Sequence[torch.Tensor] | None,
                           output_buffers: Mapping[str, torch.Tensor], output_shapes: ShapeDict) -> Any:
        """A binding of these inputs, None where the model has no such input, and of the buffers as outputs.
        An empty past is bound too."""
        given = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": attention_mask,
                 **{f"past_{i}": each for i, each in enumerate(past or ())}}
        binding = ort_session.io_binding()
        for name, tensor in given.items():
            if tensor is not None:
                bind_input(binding, name, tensor)
        for output in ort_session.get_outputs():
            bind_output(binding, output.name, output_buffers[output.name], output_shapes[output.name])
        return binding

    @staticmethod
    def get_outputs_from_io_binding_buffer(ort_session: Any, output_buffers: Mapping[str, torch.Tensor],
                                           output_shapes: ShapeDict, return_numpy: bool = True) -> list[Any]:
        """Copies of the outputs from their buffers, on the host where they are arrays."""
        outputs = []
        for output in ort_session.get_outputs():
            shape = output_shapes[output.name]
            found = output_buffers[output.name][:int(np.prod(shape))].reshape(tuple(shape)).clone().detach()
            outputs.append(found.cpu().numpy() if return_numpy else found)
        return outputs


def bind_input(binding: Any, name: str, tensor: torch.Tensor) -> None:
    """Bind a tensor as it lies. Raises InvalidArgument for one that is not contiguous."""
    if not tensor.is_contiguous():
        raise InvalidArgument("A tensor that is bound must be contiguous", node=name, found=tensor.stride(),
                              expected="rows one after another", cure="bind tensor.contiguous()")
    device = tensor.device
    binding.bind_input(name, device.type, device.index or 0, _numpy(tensor.dtype), list(tensor.shape),
                       tensor.data_ptr())


def bind_output(binding: Any, name: str, buffer: torch.Tensor, shape: Sequence[int]) -> None:
    """Bind the front of a buffer as an output. Raises InvalidArgument for a buffer that is too small."""
    if buffer.numel() < int(np.prod(shape)):
        raise InvalidArgument("A buffer is too small for its output", node=name, found=buffer.numel(),
                              expected=f"{int(np.prod(shape))} elements, of shape {list(shape)}",
                              cure="make it larger")
    device = buffer.device
    binding.bind_output(name, device.type, device.index or 0, _numpy(buffer.dtype), list(shape),
                        buffer.data_ptr())


def _numpy(dtype: Any) -> Any:
    """The type as a binding takes it: numpy's, or ONNX's number where numpy has none."""
    name = str(dtype).removeprefix("torch.")
    return _ONNX_TYPES[name] if name in _WITHOUT_NUMPY else TypeHelper.torch_type_to_numpy_type(dtype)


class CudaSession:
    """A session on tensors of one device that are kept from run to run: on the host too, where
    onnxruntime's class of this name is for GPUs."""

    def __init__(self, ort_session: Any, device: torch.device, enable_cuda_graph: bool = False) -> None:
        if enable_cuda_graph:
            raise InvalidArgument("There are no CUDA graphs here", found="enable_cuda_graph=True",
                                  expected="False", cure="leave it out: nothing is launched node by node")
        self.ort_session = ort_session
        self.device = device
        self.enable_cuda_graph = enable_cuda_graph
        self.input_names = [each.name for each in ort_session.get_inputs()]
        self.output_names = [each.name for each in ort_session.get_outputs()]
        self.io_name_to_torch_type = TypeHelper.get_io_torch_type_map(ort_session)
        self.io_binding = ort_session.io_binding()
        self.input_tensors: OrderedDict[str, Any] = OrderedDict()
        self.output_tensors: OrderedDict[str, Any] = OrderedDict()
        self.buffer_sharing: dict[str, str] = {}

    def set_buffer_sharing(self, input_name: str, output_name: str) -> None:
        """Let an output be written to where an input lies, as a cache is that grows in place."""
        for name, names in ((input_name, self.input_names), (output_name, self.output_names)):
            if name not in names:
                raise InvalidArgument("There is no such input or output", found=name,
                                      expected=", ".join(names), cure="name one of the model's")
        self.buffer_sharing[input_name] = output_name
        self.buffer_sharing[output_name] = input_name

    def bind_input_and_buffer_sharing(self, name: str, tensor: torch.Tensor) -> None:
        """Bind an input, and the output that shares its memory."""
        bind_input(self.io_binding, name, tensor)
        if name in self.buffer_sharing:
            output = self.buffer_sharing[name]
            bind_output(self.io_binding, output, tensor, tuple(tensor.shape))
            self.output_tensors[output] = tensor

    def allocate_buffers(self, shape_dict: ShapeDict) -> None:
        """Make and bind tensors for the outputs that have a shape in `shape_dict` and share no input's
        memory. Those of the same shape are kept."""
        import torch

        for name, shape in shape_dict.items():
            if name not in self.output_names or name in self.buffer_sharing:
                continue
            held = self.output_tensors.get(name)
            if held is None or tuple(held.shape) != tuple(shape):
                held = torch.empty(tuple(shape), dtype=self.io_name_to_torch_type[name], device=self.device)
                self.output_tensors[name] = held
                bind_output(self.io_binding, name, held, tuple(shape))

    def infer(self, feed_dict: Mapping[str, torch.Tensor], run_options: Any = None,
              synchronize: bool = True) -> Mapping[str, torch.Tensor]:
        """Run on these tensors, which must live until the next run, and answer the outputs' tensors by name;
        they are the same ones in each run. Inputs are read where they lie; `synchronize` is for devices that
        run behind the host."""
        for name, tensor in feed_dict.items():
            if name in self.input_names:
                held = tensor.contiguous()
                self.input_tensors[name] = held
                self.bind_input_and_buffer_sharing(name, held)
        self.ort_session.run_with_iobinding(self.io_binding, run_options)
        if synchronize:
            self.io_binding.synchronize_outputs()
        return self.output_tensors

    @staticmethod
    def get_cuda_provider_options(device_id: int, enable_cuda_graph: bool, stream: int = 0) -> dict[str, Any]:
        """Options of the CUDA provider."""
        options = {"device_id": device_id, "arena_extend_strategy": "kSameAsRequested",
                   "enable_cuda_graph": enable_cuda_graph}
        return {**options, "user_compute_stream": str(stream)} if stream else options


class GpuBinding(CudaSession):
    """A session on tensors of fixed shapes, of inputs too: a feed is copied into them."""

    def __init__(self, ort_session: Any, device: torch.device, shape_dict: ShapeDict,
                 enable_gpu_graph: bool = False, gpu_graph_id: int = -1, stream: int = 0,
                 buffer_sharing: dict[str, str] | None = None) -> None:
        super().__init__(ort_session, device, enable_gpu_graph)
        for pair in (buffer_sharing or {}).items():
            self.set_buffer_sharing(*pair)
        self.shape_dict, self.gpu_graph_id, self.stream = dict(shape_dict), gpu_graph_id, stream
        self.allocate_buffers(shape_dict)

    def allocate_buffers(self, shape_dict: ShapeDict) -> None:
        """Make and bind tensors for all inputs and outputs that have a shape."""
        import torch

        for name, shape in shape_dict.items():
            if name in self.input_names:
                tensor = torch.empty(tuple(shape), dtype=self.io_name_to_torch_type[name],
                                     device=self.device)
                self.input_tensors[name] = tensor
                self.bind_input_and_buffer_sharing(name, tensor)
        super().allocate_buffers(shape_dict)

    def get_run_options(self, disable_cuda_graph_in_run: bool = False) -> Any:
        """Options of a run."""
        import orthrus as ort

        return ort.RunOptions()

    def infer(self, feed_dict: Mapping[str, torch.Tensor],  # type: ignore[override]
              disable_cuda_graph_in_run: bool = False) -> Mapping[str, torch.Tensor]:
        """Copy a feed into the inputs' tensors, run, and answer the outputs' tensors by name. Raises
        InvalidArgument for a tensor of another shape."""
        for name, tensor in feed_dict.items():
            held = self.input_tensors.get(name)
            if held is None or held.shape != tensor.shape:
                raise InvalidArgument("A tensor does not fit what is bound", node=name,
                                      found=tuple(tensor.shape),
                                      expected=self.shape_dict.get(name, "no such input"),
                                      cure="make another binding for this shape")
            if held.data_ptr() != tensor.data_ptr():
                held.copy_(tensor)
        self.ort_session.run_with_iobinding(self.io_binding,
                                            self.get_run_options(disable_cuda_graph_in_run))
        return self.output_tensors


class GpuBindingManager:
    """Bindings of one session, one for each set of shapes; those used longest ago are dropped."""

    def __init__(self, ort_session: Any, device: torch.device, stream: int = 0, max_cuda_graphs: int = 1
                 ) -> None:
        self.ort_session, self.device, self.stream = ort_session, device, stream
        self.max_cuda_graphs = max_cuda_graphs
        self._bindings: OrderedDict[Any, GpuBinding] = OrderedDict()

    def get_binding(self, shape_dict: ShapeDict, use_cuda_graph: bool = False,
                    buffer_sharing: dict[str, str] | None = None) -> GpuBinding:
        """The binding for these shapes, which is kept for the next time."""
        key = (tuple((name, tuple(shape)) for name, shape in sorted(shape_dict.items())),
               tuple(sorted((buffer_sharing or {}).items())))
        found = self._bindings.pop(key, None)
        if found is None:
            while len(self._bindings) >= max(1, self.max_cuda_graphs):
                self._bindings.popitem(last=False)
            found = GpuBinding(self.ort_session, self.device, shape_dict, use_cuda_graph, -1, self.stream,
                               buffer_sharing)
        self._bindings[key] = found
        return found
