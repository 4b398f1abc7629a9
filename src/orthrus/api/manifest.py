"""What a model package's files say: a manifest, components and variants, shared assets, and where references
lead.

In: a package's folder. Out: a `Manifest`. Invariant: in a portable package no reference leaves the folder.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

_MANIFEST = {"schema_version", "package_name", "package_version", "description", "layout", "components",
             "shared_assets", "additional_metadata"}
_COMPONENT = {"component_name", "variants", "additional_metadata"}
_VARIANT = {"variant_directory", "ep", "device", "compatibility_string", "executor_info",
            "additional_metadata"}
MAJOR, MINOR = 1, 0
_URI = re.compile(r"sha256:([0-9a-f]{64})(?:/(.*))?", re.DOTALL)


def object_of(text: Any, what: str) -> dict[str, Any]:
    """A JSON object from its text. Raises ValueError for what is none."""
    try:
        made = json.loads(text)
    except ValueError:
        raise ValueError(f"{what}: JSON parse error.") from None
    if not isinstance(made, dict):
        raise ValueError(f"{what}: must be a JSON object.")
    return made


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Manifest:
    """A package as it was read, or an empty one. `components`: by name, each a body, the folder that its
    variants lie in, and the path of a file of its own."""

    def __init__(self, root: str | None = None, external: bool = False, links: bool = True,
                 strict: bool = True) -> None:
        self.root = None if root is None else Path(os.path.abspath(root))
        self.external, self.links, self.strict = external, links, strict
        self.manifest: dict[str, Any] = {}
        self.components: dict[str, tuple[dict[str, Any], Path | None, str | None]] = {}
        self.assets: dict[str, Path] = {}
        self.version = (0, 0)
        if self.root is not None:
            self._read(self.root)

    @property
    def layout(self) -> str:
        return str(self.manifest.get("layout", "portable"))

    def _read(self, root: Path) -> None:
        if not root.is_dir():
            raise RuntimeError(f"package_root '{root}' is not a directory.")
        self.manifest = object_of(contents(root / "manifest.json"), "manifest")
        told = self.manifest.get("schema_version")
        found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", f"{told}.0" if type(told) is int else str(told))
        if found is None:
            raise ValueError("manifest: 'schema_version' must be a \"<major>.<minor>\" string.")
        self.version = int(found[1]), int(found[2])
        if self.version[0] != MAJOR:
            raise ValueError(f"manifest: schema_version major {self.version[0]} is not supported; expected"
                             f" {MAJOR}")
        if self.version[1] > MINOR:
            self.strict = False
        if self.layout not in ("portable", "installed"):
            raise ValueError("manifest: 'layout' must be 'portable' or 'installed'.")
        if not isinstance(self.manifest.get("components"), dict):
            raise ValueError("manifest: missing required 'components' object.")
        self._known(self.manifest, _MANIFEST, "manifest")
        self._read_assets(root)
        for name, told in self.manifest["components"].items():
            if isinstance(told, str):
                place = Path(self.resolve(told, root, True))
                file = place / "component.json" if place.is_dir() else place
                self.components[name] = (object_of(contents(file), f"component '{name}'"), file.parent, told)
            else:
                self.components[name] = (told, root, None)
            self._check(name)

    def _read_assets(self, root: Path) -> None:
        given = self.manifest.get("shared_assets", {})
        if not isinstance(given, dict):
            raise ValueError("manifest: shared_assets must be an object.")
        for uri, place in given.items():
            if not _URI.fullmatch(uri) or not isinstance(place, str):
                raise ValueError(f"manifest: shared_assets key '{uri}' is no sha256:<64 hex digits> with a"
                                 " path.")
            self.assets[uri] = Path(self.resolve(place, root))
        folder = root / "shared_assets"
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            if re.fullmatch("sha256-[0-9a-f]{64}", each.name) and each.is_dir():
                self.assets.setdefault(each.name.replace("-", ":", 1), each)

    def _known(self, told: dict[str, Any], names: set[str], what: str) -> None:
        odd = sorted(set(told) - names)
        if self.strict and odd:
            raise ValueError(f"{what}: unknown field '{odd[0]}'; known are {', '.join(sorted(names))}")

    def _check(self, name: str) -> None:
        """Raises ValueError where a component's body is not as the schema has it."""
        body, _, _ = self.components[name]
        what = f"component '{name}'"
        if not isinstance(body, dict) or not isinstance(body.get("variants"), dict):
            raise ValueError(f"{what}: missing required 'variants' object.")
        self._known(body, _COMPONENT, what)
        for variant, told in body["variants"].items():
            where = f"{what} variant '{variant}'"
            if not isinstance(told, dict):
                raise ValueError(f"{where}: must be a JSON object.")
            self._known(told, _VARIANT, where)
            for key in ("variant_directory", "ep", "device", "compatibility_string"):
                if not isinstance(told.get(key, ""), str):
                    raise ValueError(f"{where}: {key} must be a string.")
            infos = told.get("executor_info", {})
            if not isinstance(infos, dict) or not all(isinstance(i, str | dict) for i in infos.values()):
                raise ValueError(f"{where}: executor_info holds paths and JSON objects.")
            if self.root is not None and "variant_directory" in told and self.folder(name, variant) is None:
                raise ValueError(f"{where}: variant_directory '{told['variant_directory']}' is not there.")

    def resolve(self, reference: str, base: Path | None = None, must_exist: bool = False) -> str:
        """The path that a reference stands for, relative to `base` or the package's folder. Raises
        ValueError for one that leaves the package or names an asset nobody declared."""
        found = _URI.fullmatch(reference)
        if found:
            uri, below = f"sha256:{found[1]}", found[2] or ""
            if uri not in self.assets:
                raise ValueError(f"Asset URI not declared in this package: '{uri}'.")
            if os.path.isabs(below) or ".." in Path(below).parts:
                raise ValueError(f"ResolvePath: '{below}' leaves the shared asset '{uri}'.")
            place, home = self.assets[uri] / below, self.assets[uri]
        else:
            free = self.external or self.layout == "installed"
            if not free and os.path.isabs(reference):
                raise ValueError(f"ResolvePath: absolute or drive-rooted path '{reference}' is not allowed in"
                                 " portable layout.")
            if not free and ".." in Path(reference).parts:
                raise ValueError("ResolvePath: '..' segments are not allowed in portable layout:"
                                 f" '{reference}'.")
            if self.root is None and base is None:
                raise ValueError("ResolvePath: the package has no folder yet.")
            home = self.root or Path("/")
            place = Path(os.path.normpath((base or home) / reference))
            if free:
                home = Path("/")
        real = Path(os.path.realpath(place))
        if not self.links and real != Path(os.path.realpath(home)) / os.path.relpath(place, home):
            raise ValueError(f"ResolvePath: '{reference}' goes through a symbolic link.")
        if not real.is_relative_to(os.path.realpath(home)):
            raise ValueError(f"ResolvePath: '{reference}' leaves the package.")
        if must_exist and not place.exists():
            raise ValueError(f"ResolvePath: '{place}' does not exist.")
        return str(place)

    def variants(self, component: str) -> dict[str, Any]:
        if component not in self.components:
            raise RuntimeError(f"Component model not found: {component}")
        told: dict[str, Any] = self.components[component][0]["variants"]
        return told

    def variant(self, component: str, name: str) -> dict[str, Any]:
        told = self.variants(component)
        if name not in told:
            raise RuntimeError(f"Variant '{name}' not found in component '{component}'.")
        body: dict[str, Any] = told[name]
        return body

    def folder(self, component: str, variant: str) -> Path | None:
        """A variant's folder, None where it is not there."""
        base = self.components[component][1]
        if base is None:
            return None
        place = Path(self.resolve(self.variant(component, variant).get("variant_directory", variant), base))
        return place if place.is_dir() else None

    def info(self, component: str, variant: str, namespace: str) -> dict[str, Any] | None:
        """What a variant tells a consumer of that name."""
        told = self.variant(component, variant).get("executor_info", {}).get(namespace)
        if not isinstance(told, str):
            return told
        file = self.resolve(told, self.folder(component, variant), True)
        return object_of(contents(Path(file)), f"variant '{variant}'")


def contents(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RuntimeError(f"'{path}' cannot be read: {error}") from None
