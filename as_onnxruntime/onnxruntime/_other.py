"""Another onnxruntime among what is installed: where it is, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable


def refusal(folders: Iterable[str]) -> str | None:
    """Why this distribution must not stand beside what is in `folders`; None where it may. The files count,
    as several distributions bring them: onnxruntime, onnxruntime-gpu, nightly builds."""
    its = os.path.join("onnxruntime", "capi", "__init__.py")
    found = [folder for folder in folders if os.path.isfile(os.path.join(folder, its))]
    if not found:
        return None
    return (f"another onnxruntime is installed in {found[0]}, and programs would get a mixture of the two. "
            "Either uninstall every onnxruntime (pip list says which there are; pip uninstall onnxruntime "
            "onnxruntime-gpu) and run pip install ./as_onnxruntime again; or keep that one, and run single "
            "programs on orthrus: orthrus exec program.py")
