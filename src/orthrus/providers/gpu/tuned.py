"""Results of tuning as onnxruntime passes them around, and on disk.

In: what was found on a device. Out: that with its validators, which say where it holds: the package's
sources, the device and the compiler. Files are named by all of these.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...codegen.object import cache
from ...codegen.triton import compile as compiling
from ...ir import No

if TYPE_CHECKING:
    from ...lowering.gpu.tuning import Results
    from .provider import GpuProvider


def validators(provider: GpuProvider) -> dict[str, str]:
    """What has to be the same for results to hold, by onnxruntime's names."""
    found = "source"
    with contextlib.suppress(PackageNotFoundError):
        found = version("orthrus-runtime")
    return {"ORT_VERSION": found, "ORT_GIT_COMMIT": cache.stamp(),
            "ORT_BUILD_CONFIG": f"TARGET={provider.target}|COMPILER={compiling.compiler()}",
            "DEVICE_MODEL": provider.device.properties.name}


def _mismatch(mine: Mapping[str, str], given: Any) -> No | None:
    """Why results with validators `given` do not hold where `mine` are."""
    if not isinstance(given, Mapping):
        return No(f"validators are no map: {given!r}")
    for key in dict.fromkeys((*mine, *given)):
        if key not in given:
            return No(f'the validator "{key}" is missing')
        if key not in mine:
            return No(f'the validator "{key}" is not known here')
        if mine[key] != given[key]:
            return No(f'the validator "{key}" differs: the results were made with {given[key]!r}, here is '
                      f"{mine[key]!r}")
    return None


def checked(mine: Mapping[str, str], given: Any, results: Any) -> Results | No:
    """Results with validators `given`, which hold where `mine` are; or why they do not."""
    why = _mismatch(mine, given)
    return _read(results) if why is None else why


def _read(results: Any) -> Results | No:
    """Numbers by parameters by operators."""
    if not isinstance(results, Mapping):
        return No(f"results are no map: {results!r}")
    for operator, ways in results.items():
        if not isinstance(operator, str) or not isinstance(ways, Mapping) or not all(
                isinstance(k, str) and type(way) is int for k, way in ways.items()):
            return No(f"the results of {operator!r} are no map of texts to integers: {ways!r}")
    return {operator: dict(ways) for operator, ways in results.items()}


def _file(holds: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(["tuned", holds], sort_keys=True).encode()).hexdigest()


def recalled(holds: Mapping[str, str]) -> Results:
    """What was found by other processes."""
    name = _file(holds)
    kept = cache.load([name]).get(name, b"{}")
    with contextlib.suppress(ValueError):
        found = _read(json.loads(kept))
        return {} if isinstance(found, No) else found
    return {}


def keep(results: Results, holds: Mapping[str, str]) -> None:
    """Add results to what other processes found."""
    whole = recalled(holds)
    for operator, ways in results.items():
        whole.setdefault(operator, {}).update(ways)
    cache.store({_file(holds): json.dumps(whole).encode()})
