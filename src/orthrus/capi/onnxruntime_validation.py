"""Checks of the installation, under onnxruntime's names: there is nothing to check here."""

from __future__ import annotations

from ..api.version import API_LEVEL


def check_distro_info() -> None:
    """Nothing: the package runs wherever its dependencies do."""


def check_training_module() -> tuple[bool, str, str, str]:
    """Whether training is there (no), and (package, version, CUDA version)."""
    return (False, *get_package_name_and_version_info())


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Package name, version of the API, CUDA version."""
    return "orthrus", API_LEVEL, ""


__all__ = ["check_distro_info", "check_training_module", "get_package_name_and_version_info"]
