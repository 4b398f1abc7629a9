"""Model packages: a folder with a `manifest.json` that says which components there are, and of each the
variants for providers and devices.

In: a package's folder. Out: what it holds (`ModelPackage`, which also writes packages), and a session on that
variant of a component which fits the providers of some SessionOptions (`ModelPackageContext`).
"""

from __future__ import annotations

import copy
import enum
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .manifest import MAJOR, MINOR, Manifest, compact, contents, object_of
from .options import SessionOptions
from .session import InferenceSession

_PATHS = ("session.model_external_initializers_file_folder_path", "ep.context_file_path")
"""Session options whose values are references to what the package holds."""
_CALLERS = re.compile(
    r"session\.(debug_layout_transformation|collect_node_memory_stats_to_file|enable_profiling"
    r"|optimized_model_filepath)|ep\.context_(enable|sign|trust)|orthrus\..*")
"""Session options that say which code is trusted or name files to write, which no package may."""
_CODE_OR_FILES = re.compile(r".*(path|dir|folder|file|flags|module|library|command).*")
"""Provider options that may name code or files."""


class ModelPackageWriteMode(enum.Enum):
    """How components that have a file of their own are written: as they are, or into the manifest."""

    PRESERVE = 0
    DENSE = 1


class ModelPackageOptions:
    """The provider, and its devices, by which variants are selected: the first of some SessionOptions."""

    def __init__(self, sess_options: SessionOptions) -> None:
        from .core import CoreSession
        from .devices import get_ep_devices

        asked = CoreSession(sess_options, b"", False, False)._providers_of_options()
        self._provider = asked[0][0] if asked else "CPUExecutionProvider"
        self._given = dict(asked[0][1]) if asked else {}
        self._devices = {d.device.type.name.lower() for d in get_ep_devices() if d.ep_name == self._provider}
        if self._provider == "CPUExecutionProvider":
            self._devices.add("cpu")


class ModelPackageContext:
    """A package, to be looked at and to make sessions of."""

    def __init__(self, package_root: str) -> None:
        """Raises RuntimeError for what is no package."""
        try:
            self._package = Manifest(os.fspath(package_root))
        except (ValueError, RuntimeError) as error:
            raise RuntimeError(f"Failed to open model package at '{package_root}': {error}") from None

    def get_schema_version(self) -> int:
        return self._package.version[0]

    def get_component_count(self) -> int:
        return len(self._package.components)

    def get_component_names(self) -> list[str]:
        return list(self._package.components)

    def get_variant_count(self, component_name: str) -> int:
        return len(self._package.variants(component_name))

    def get_variant_names(self, component_name: str) -> list[str]:
        """Raises RuntimeError for a component that is not there."""
        return list(self._package.variants(component_name))

    def get_variant_ep_name(self, component_name: str, variant_name: str) -> str | None:
        """Raises RuntimeError for a variant that is not there."""
        return self._package.variant(component_name, variant_name).get("ep")

    def resolve_string_ref(self, string_ref: str, base_dir: str | None = None, must_exist: bool = False
                           ) -> str:
        """The path that a reference stands for. Raises RuntimeError where it stands for none."""
        try:
            return self._package.resolve(string_ref, None if base_dir is None else Path(base_dir), must_exist)
        except ValueError as error:
            raise RuntimeError(f"Failed to resolve '{string_ref}' in model package: {error}") from None

    def select_component(self, component_name: str, options: ModelPackageOptions
                         ) -> ModelPackageComponentContext:
        """The first variant for the options' provider, on one of its devices. Raises RuntimeError where there
        is none."""
        if component_name not in self._package.components:
            raise RuntimeError(f"Component model not found: {component_name}")
        for name, told in self._package.variants(component_name).items():
            if told.get("ep") == options._provider and told.get("device", "") in ("", *options._devices):
                return ModelPackageComponentContext._make(self._package, component_name, name, options)
        raise RuntimeError("No suitable model variant found for the configured execution providers.")


class ModelPackageComponentContext:
    """The variant that was selected of a component."""

    _package: Manifest

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")

    @classmethod
    def _make(cls, package: Manifest, component: str, variant: str, options: ModelPackageOptions
              ) -> ModelPackageComponentContext:
        made = cls.__new__(cls)
        made._package, made._component, made._variant, made._options = package, component, variant, options
        return made

    _component: str
    _variant: str
    _options: ModelPackageOptions

    def get_selected_variant_name(self) -> str:
        return self._variant

    def get_selected_variant_folder_path(self) -> str:
        """Raises RuntimeError where the variant has no folder."""
        found = self._package.folder(self._component, self._variant)
        if found is None:
            raise RuntimeError("Selected variant folder path is null.")
        return str(found)

    def create_session(self, sess_options: SessionOptions | None = None) -> InferenceSession:
        """A session on the variant's model, with the package's options of session and provider where none are
        given. Raises RuntimeError for a variant that names no model, and what a session raises."""
        folder = Path(self.get_selected_variant_folder_path())
        where = f"variant '{self._variant}'"
        try:
            told = self._package.info(self._component, self._variant, "ort") or {}
            if not isinstance(told.get("model_file"), str):
                raise RuntimeError("Selected variant has no file entry.")
            model = self._package.resolve(told["model_file"], folder, True)
            entries, given = (_strings(told.get(k, {}), k, where) for k in ("session_options",
                                                                            "provider_options"))
            for what, keys, refused in (("session", entries, _CALLERS),
                                        ("provider", given, _CODE_OR_FILES)):
                for key in filter(refused.fullmatch, keys):
                    raise ValueError(f"'{key}' cannot be set in model package {what} options for {where};"
                                     " give it to the session where the package is trusted")
            entries |= {k: self._inside(entries[k], folder) for k in _PATHS if k in entries}
        except ValueError as error:
            raise RuntimeError(f"Failed to resolve ORT {where}: {error}") from None
        options = SessionOptions() if sess_options is None else copy.copy(sess_options)
        for key, value in entries.items():
            if sess_options is None or (key in _PATHS and key not in options._entries):
                options.add_session_config_entry(key, value)
        if options._providers or options._policy is not None:
            return InferenceSession(model, options)
        known = {**self._options._given, **(given if sess_options is None else {})}
        return InferenceSession(model, options, providers=[(self._options._provider, known)])

    _create_session = create_session

    def _inside(self, reference: str, folder: Path) -> str:
        """The path in the package that a reference stands for, whatever its layout allows."""
        place, root = self._package.resolve(reference, folder), self._package.root
        if root is None or not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(root)):
            raise ValueError(f"'{reference}' leaves the package; give it to the session where it is trusted")
        return place


def _strings(told: Any, what: str, where: str) -> dict[str, str]:
    if not isinstance(told, dict) or not all(isinstance(v, str) for v in told.values()):
        raise ValueError(f"{what} entries must be strings for {where}")
    return dict(told)


def _files(folder: Path) -> Iterator[Path]:
    for each in sorted(folder.rglob("*")):
        if each.is_symlink():
            raise ValueError(f"'{each}' is a symbolic link, which a shared asset has none of")
        if each.is_file():
            yield each


class ModelPackage:
    """A package to be looked at, changed and written. JSON arguments are strings.

    Methods raise ValueError for what the schema does not allow, and after `close`; RuntimeError for files
    that cannot be read or written.
    """

    def __init__(self) -> None:
        self._read: Manifest | None = Manifest()
        self._staged: dict[str, Path] = {}

    @staticmethod
    def open(package_root: str, allow_external_paths: bool = False, follow_symlinks: bool = True,
             strict_unknown_fields: bool = True) -> ModelPackage:
        """The package in a folder."""
        made = ModelPackage()
        made._read = Manifest(os.fspath(package_root), allow_external_paths, follow_symlinks,
                              strict_unknown_fields)
        return made

    @property
    def _package(self) -> Manifest:
        if self._read is None:
            raise ValueError("Model package is closed.")
        return self._read

    def close(self) -> None:
        self._read = None

    def __enter__(self) -> ModelPackage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_info(self) -> dict[str, Any]:
        """Metadata, components, variants and shared assets."""
        p = self._package

        def metadata(told: dict[str, Any]) -> str | None:
            return compact(told["additional_metadata"]) if "additional_metadata" in told else None

        def variant(component: str, name: str, told: dict[str, Any]) -> dict[str, Any]:
            folder = p.folder(component, name)
            infos = {key: p.info(component, name, key) for key in told.get("executor_info", {})}
            return {"name": name, "variant_directory": None if folder is None else str(folder),
                    **{key: told.get(key) for key in ("ep", "device", "compatibility_string")},
                    "additional_metadata_json": metadata(told),
                    "executor_info": {key: compact(info) for key, info in infos.items()}}
        return {"schema_version_major": p.version[0], "schema_version_minor": p.version[1],
                **{key: p.manifest.get(key) for key in ("package_name", "package_version", "description")},
                "layout": p.layout, "additional_metadata_json": metadata(p.manifest),
                "components": [
                    {"name": name, "additional_metadata_json": metadata(body), "variants": [
                        variant(name, v, told) for v, told in body["variants"].items()]}
                    for name, (body, _, _) in p.components.items()],
                "shared_assets": [{"uri": uri, "resolved_path": str(place)}
                                  for uri, place in p.assets.items()]}

    def get_component_json(self, component_name: str) -> str:
        self._package.variants(component_name)
        return compact(self._package.components[component_name][0])

    def get_variant_json(self, component_name: str, variant_name: str) -> str:
        return compact(self._package.variant(component_name, variant_name))

    def resolve_string_ref(self, string_ref: str, base_dir: str | None = None, must_exist: bool = False
                           ) -> str:
        return self._package.resolve(string_ref, None if base_dir is None else Path(base_dir), must_exist)

    def resolve_asset_uri(self, uri: str) -> str:
        return self._package.resolve(uri)

    @staticmethod
    def compute_directory_hash(source_dir: str) -> str:
        """`sha256:` and the digest of the names and contents of a folder's files."""
        folder = Path(source_dir)
        if not folder.is_dir():
            raise RuntimeError(f"'{source_dir}' is not a directory.")
        lines = sorted((f.relative_to(folder).as_posix(), hashlib.sha256(f.read_bytes()).hexdigest())
                       for f in _files(folder))
        text = "".join(f"{digest}  {name}\n" for name, digest in lines)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def set_metadata(self, name: str | None = None, version: str | None = None, description: str | None = None
                     ) -> None:
        for key, value in (("package_name", name), ("package_version", version),
                           ("description", description)):
            if value is not None:
                self._package.manifest[key] = value

    def set_layout(self, layout: str) -> None:
        if layout not in ("portable", "installed"):
            raise ValueError("SetLayout: layout must be 'portable' or 'installed'.")
        self._package.manifest["layout"] = layout

    def set_additional_metadata_json(self, scope: str, component_name: str | None = None,
                                     variant_name: str | None = None, json: str | None = None) -> None:
        """Of the manifest, a component or a variant; None takes it away."""
        if scope not in ("manifest", "component", "variant"):
            raise ValueError("SetAdditionalMetadataJson: scope must be 'manifest', 'component', or 'variant'."
                             )
        if (component_name is not None) != (scope != "manifest") or (
                variant_name is not None) != (scope == "variant"):
            raise ValueError(f"SetAdditionalMetadataJson: '{scope}' scope takes"
                             f" {'no' if scope == 'manifest' else 'its'} component and"
                             f" {'its' if scope == 'variant' else 'no'} variant.")
        told = self._package.manifest
        if component_name is not None:
            self._package.variants(component_name)
            told = self._package.components[component_name][0]
            if variant_name is not None:
                told = self._package.variant(component_name, variant_name)
        if json is None:
            told.pop("additional_metadata", None)
        else:
            told["additional_metadata"] = _value(json, f"additional_metadata of the {scope}")

    def set_component_inline(self, name: str, component_json: str) -> None:
        self._put(name, (object_of(component_json, f"component '{name}'"), self._package.root, None))

    def set_component_external(self, name: str, path: str) -> None:
        """A component that is described by a file of its own, or by `component.json` in a folder."""
        place = Path(self._package.resolve(path, None, True))
        file = place / "component.json" if place.is_dir() else place
        self._put(name, (object_of(contents(file), f"component '{name}'"), file.parent, path))

    def _put(self, name: str, component: tuple[dict[str, Any], Path | None, str | None]) -> None:
        p = self._package
        before = p.components.get(name)
        p.components[name] = component
        try:
            p._check(name)
        except ValueError:
            p.components.pop(name)
            if before is not None:
                p.components[name] = before
            raise

    def remove_component(self, name: str) -> None:
        self._package.components.pop(name, None)

    def set_variant(self, component_name: str, variant_name: str, variant_json: str) -> None:
        self._package.variants(component_name)
        body, folder, path = copy.deepcopy(self._package.components[component_name])
        body["variants"][variant_name] = object_of(variant_json, f"variant '{variant_name}'")
        self._put(component_name, (body, folder, path))

    def remove_variant(self, component_name: str, variant_name: str) -> None:
        self._package.variants(component_name).pop(variant_name, None)

    def set_variant_executor_info_inline(self, component_name: str, variant_name: str, namespace_key: str,
                                         info_json: str) -> None:
        told = object_of(info_json, f"executor_info '{namespace_key}'")
        self._package.variant(component_name, variant_name).setdefault("executor_info", {})[
            namespace_key] = told

    def set_variant_executor_info_external(self, component_name: str, variant_name: str, namespace_key: str,
                                           path: str) -> None:
        self._package.variant(component_name, variant_name).setdefault("executor_info", {})[
            namespace_key] = path

    def remove_variant_executor_info(self, component_name: str, variant_name: str, namespace_key: str
                                     ) -> None:
        self._package.variant(component_name, variant_name).get("executor_info", {}).pop(namespace_key, None)

    def add_shared_asset(self, source_dir: str, expected_uri: str | None = None, copy_in: bool = True) -> str:
        """A folder's address by its content; it is copied when the package is written."""
        uri = self.compute_directory_hash(source_dir)
        if expected_uri not in (None, uri):
            raise ValueError(f"the content of '{source_dir}' is {uri}, expected {expected_uri}")
        place = Path(os.path.abspath(source_dir))
        if copy_in:
            self._staged[uri] = place
        elif self._package.layout == "portable":
            raise ValueError("AddSharedAsset: a portable package copies its assets.")
        else:
            self._package.manifest.setdefault("shared_assets", {})[uri] = str(place)
        self._package.assets[uri] = place
        return uri

    def remove_shared_asset(self, uri: str) -> None:
        self._staged.pop(uri, None)
        self._package.manifest.get("shared_assets", {}).pop(uri, None)
        place = self._package.assets.pop(uri, None)
        root = self._package.root
        if place is not None and root is not None and place.parent == root / "shared_assets":
            shutil.rmtree(place, ignore_errors=True)

    def commit(self, dest_root: str | None = None, mode: ModelPackageWriteMode
               = ModelPackageWriteMode.PRESERVE) -> None:
        """Write in place, or all of it into an empty folder, which is the package's from then on."""
        p = self._package
        if dest_root is None and p.root is None:
            raise RuntimeError("Commit: package has no package_root. Use dest_root variant.")
        root = Path(os.path.abspath(p.root if dest_root is None else dest_root))  # type: ignore[arg-type]
        if dest_root is not None:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise RuntimeError(f"Commit: '{root}' is not empty.")
            root.mkdir(parents=True, exist_ok=True)
            if p.root is not None:
                shutil.copytree(p.root, root, dirs_exist_ok=True)
        for uri, place in self._staged.items():
            target = root / "shared_assets" / uri.replace(":", "-")
            if not target.exists():
                shutil.copytree(place, target)
        written: dict[str, Any] = {}
        for name, (body, folder, path) in p.components.items():
            dense = mode == ModelPackageWriteMode.DENSE or path is None
            written[name] = self._anchored(body, folder, p.root) if dense and path is not None else (
                body if dense else path)
            if not dense and folder is not None and path is not None:
                place = root / path
                file = place / "component.json" if place.is_dir() else place
                _write(file, body)
        order = {"schema_version": f"{MAJOR}.{MINOR}", **p.manifest, "layout": p.layout,
                 "components": written}
        _write(root / "manifest.json", order)
        self._staged = {}
        self._read = Manifest(str(root), p.external, p.links, p.strict)

    @staticmethod
    def _anchored(body: dict[str, Any], folder: Path | None, root: Path | None) -> dict[str, Any]:
        """A component's body with folders relative to the package's."""
        made = copy.deepcopy(body)
        if folder is not None and root is not None and folder != root:
            for name, told in made["variants"].items():
                place = folder / told.get("variant_directory", name)
                if place.is_dir():
                    told["variant_directory"] = os.path.relpath(place, root)
        return made

    def prune(self) -> None:
        """Take away what an interrupted `commit` left."""
        root = self._package.root
        for each in root.glob("*.tmp") if root is not None else ():
            each.unlink(missing_ok=True)


def _value(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"Failed to parse {what}: JSON parse error.") from None


def _write(path: Path, told: dict[str, Any]) -> None:
    """JSON in one step, so that readers find the old file or the new."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(draft, path)
