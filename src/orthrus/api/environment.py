"""The module's functions: versions, providers, allocators, threads, seeds."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..seeds import set_seed as _set_seed
from .arguments import mismatch
from .devices import OrtArenaCfg, OrtMemoryInfo
from .version import API_LEVEL, VERSION

if TYPE_CHECKING:
    from .options import SessionOptions

global_threads: list[tuple[int, int]] = []
"""What `set_global_thread_pool_sizes` was given, once a process."""


def get_available_providers() -> list[str]:
    """The providers that work on this machine, by priority, the CPU provider last."""
    from ..providers import available

    return available()


def get_all_providers() -> list[str]:
    """Every provider name this runtime or onnxruntime has, by priority."""
    from ..providers import ALL

    return list(ALL)


def get_device() -> str:
    """`GPU` where a provider for one is available, else `CPU`."""
    from .devices import get_ep_devices
    from .enums import OrtHardwareDeviceType

    kinds = {d.device.type for d in get_ep_devices()}
    return "GPU" if OrtHardwareDeviceType.GPU in kinds else "CPU"


def get_version_string() -> str:
    """The level of the onnxruntime API that this package answers to."""
    return API_LEVEL


def get_build_info() -> str:
    """This package's own version, worded as onnxruntime words its own."""
    return f"ORT Build Info: Orthrus {VERSION}, API of onnxruntime {API_LEVEL}"


def has_collective_ops() -> bool:
    """False: no operator here works across machines."""
    return False


def set_seed(seed: int) -> None:
    """Seed random operators without a seed of their own, in sessions created from now on. Raises TypeError
    for no int."""
    try:
        _set_seed(operator.index(seed))
    except TypeError:
        raise mismatch("set_seed", "(arg0: int) -> None", seed) from None


def enable_telemetry_events() -> None:
    """Nothing: this package sends nothing anywhere."""


def disable_telemetry_events() -> None:
    """Nothing: this package sends nothing anywhere."""


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """The threads of every session from now on whose option `use_per_session_threads` is off; others are
    refused with RuntimeError. 0: as many as there are cores. Raises Fail when called again."""
    from ..errors import Fail

    if not (isinstance(intra_op_num_threads, int) and isinstance(inter_op_num_threads, int)):
        raise mismatch("set_global_thread_pool_sizes",
                       "(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None",
                       intra_op_num_threads, inter_op_num_threads)
    if global_threads:
        raise Fail("Global thread pools have already been created, cannot replace them")
    global_threads.append((intra_op_num_threads, inter_op_num_threads))


def threads_of(options: SessionOptions) -> tuple[int, int]:
    """The threads within a node and beside each other that a session gets. Raises RuntimeError where it asks
    for its own although there are global ones."""
    if not global_threads:
        return options.intra_op_num_threads, options.inter_op_num_threads
    if options.use_per_session_threads:
        raise RuntimeError("use_per_session_threads must be false when using a global thread pool")
    return global_threads[0]


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None) -> None:
    """Kept for the API's sake: memory is planned per input shape. Raises TypeError for other arguments."""
    if not isinstance(memory_info, OrtMemoryInfo) or not isinstance(arena_cfg, OrtArenaCfg | None):
        raise mismatch("create_and_register_allocator", "(arg0: OrtMemoryInfo, arg1: OrtArenaCfg) -> None",
                       memory_info, arena_cfg)


def create_and_register_allocator_v2(
    provider_type: str, memory_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None,
) -> None:
    """As `create_and_register_allocator`, for a provider."""
    create_and_register_allocator(memory_info, arena_cfg)


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Make the providers of a shared library known, which is built against `orthrus_provider.h`; sessions ask
    for them by the names that it gives them, as `get_ep_devices` lists them.

    Raises Fail for what is no such library, as are onnxruntime's own, and for a name that is taken.
    """
    from ..providers.library import register_library

    if not (isinstance(registration_name, str) and isinstance(library_path, str | os.PathLike)):
        raise mismatch("register_execution_provider_library", "(arg0: str, arg1: str) -> None",
                       registration_name, library_path)
    register_library(registration_name, os.fspath(library_path))


def unregister_execution_provider_library(registration_name: str) -> None:
    """Forget the providers of a library, by the name it was registered under, or one registered in Python, by
    its own. Sessions that have them go on. Raises Fail for any other name."""
    from ..providers import unregister
    from ..providers.library import unregister_library

    if not unregister_library(registration_name):
        unregister(registration_name)


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str
                 | None = None) -> None:
    """Nothing: a provider loads the libraries it needs when it is first used."""


def print_debug_info() -> None:
    """Print what a report of a problem should say: versions, platform, providers."""
    import platform
    import sys
    from importlib import metadata

    print(f"Orthrus {VERSION}, API of onnxruntime {API_LEVEL}")
    print(f"platform: {platform.platform()}, Python {sys.version.split()[0]}")
    for package in ("numpy", "ml_dtypes", "onnx", "llvmlite"):
        try:
            print(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            print(f"{package} is not installed")
    print("providers:", ", ".join(get_available_providers()))


def get_default_session_options() -> Any:
    """New options with every default."""
    from .options import SessionOptions

    return SessionOptions()


def get_hardware_device_ep_incompatibility_details(ep_name: str, device: Any) -> dict[str, Any]:
    """Why a provider cannot use a device; reasons 0: it can.

    Raises InvalidArgument for a provider that is not available.
    """
    from ..errors import InvalidArgument

    if ep_name not in get_available_providers():
        raise InvalidArgument(f"No valid factory found for execution provider '{ep_name}'.",
                              expected=", ".join(get_available_providers()))
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(ep_devices: Any, compatibility_info: str) -> Any:
    """EP_NOT_APPLICABLE: no provider here keeps compiled parts in a model. Raises RuntimeError without
    devices, TypeError for what are none."""
    from .devices import OrtEpDevice
    from .enums import OrtCompiledModelCompatibility

    if not (isinstance(ep_devices, Sequence) and isinstance(compatibility_info, str)
            and all(isinstance(d, OrtEpDevice) for d in ep_devices)):
        raise mismatch("get_model_compatibility_for_ep_devices",
                       "(arg0: Sequence[OrtEpDevice], arg1: str) -> OrtCompiledModelCompatibility",
                       ep_devices, compatibility_info)
    if not ep_devices:
        raise RuntimeError("Invalid argument provided to GetModelCompatibilityForEpDevices.")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str, ep_name: str) -> str | None:
    """The text that a compiled model's metadata keeps for a provider, None where it keeps none. Raises
    RuntimeError where the model cannot be read or no provider is named."""
    return _compatibility_info("GetCompatibilityInfoFromModel", os.fspath(model_path), ep_name)


def get_compatibility_info_from_model_bytes(model: bytes, ep_name: str) -> str | None:
    """As `get_compatibility_info_from_model`, for a model in memory."""
    return _compatibility_info("GetCompatibilityInfoFromModelBytes", bytes(model), ep_name)


def _compatibility_info(function: str, source: str | bytes, ep_name: str) -> str | None:
    from ..errors import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile
    from .peek import metadata

    if not ep_name or source == b"":
        raise RuntimeError(f"Invalid argument provided to {function}.")
    try:
        return metadata(source).get(f"ep_compatibility_info.{ep_name}")
    except (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile) as error:
        raise RuntimeError(error.text) from error
