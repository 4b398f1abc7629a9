"""The module by which Python programs for SpacemiT's processors make its execution provider known.

In: an import. Out: `SpaceMITExecutionProvider` is among `orthrus.get_available_providers()`, where this
machine can run it, and the names below, which such programs hand on as provider options.

    session = orthrus.InferenceSession(path, providers=[(kSpaceMITExecutionProvider, {
        "shared_lib_path": EPLibPath, "provider_factory_entry_point": kExecutionProviderSharedLibraryEntry})])
"""

from __future__ import annotations

from pathlib import Path

from orthrus.providers import spacemit

kSpaceMITExecutionProvider = spacemit.SpaceMITExecutionProvider.name
EPLibPath = str(Path(spacemit.__file__).resolve())
"""Where the provider is. It is no library, and what the option `shared_lib_path` says changes nothing."""
kExecutionProviderSharedLibraryEntry = "GetSpaceMITSharedProviderFactory"

spacemit.SpaceMITExecutionProvider.listed = True

__all__ = ["EPLibPath", "kExecutionProviderSharedLibraryEntry", "kSpaceMITExecutionProvider"]
