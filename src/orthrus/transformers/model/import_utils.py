"""Whether a package can be imported, under the name of onnxruntime.transformers.import_utils."""

from __future__ import annotations

import importlib.metadata
import importlib.util


def is_installed(package: str) -> bool:
    """Whether there is a module or a distribution of this name; nothing is imported."""
    try:
        if importlib.util.find_spec(package) is not None:
            return True
    except (ImportError, ValueError):
        pass
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
