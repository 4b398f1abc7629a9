"""PyTorch modules on Orthrus: `from_torch` for a whole module, `torch.compile(backend="orthrus")` for what
torch's compiler cuts out of a program.

Needs PyTorch and onnxscript, which nothing else here imports: `pip install orthrus-runtime[torch]`. Importing
this package makes the backend known to torch, unless an installed package's entry point did so before.
"""

from __future__ import annotations

from ..errors import NotFound

try:
    import torch._dynamo
except ImportError as error:
    raise NotFound("PyTorch is not installed", found=error,
                   cure="pip install orthrus-runtime[torch]") from None

from .backend import backend
from .module import CompiledModule, from_torch
from .report import CompiledGraph, Fallback, Report, report, reset

__all__ = ["CompiledGraph", "CompiledModule", "Fallback", "Report", "backend", "from_torch", "report",
           "reset"]

if "orthrus" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(backend, name="orthrus")
