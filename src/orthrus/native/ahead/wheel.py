"""A wheel: a Python package around a model's library, which needs numpy and nothing else.

In: the package's files. Out: a wheel whose tag says the architecture and, as the library asks for it, how old
the C library may be. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import keyword
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ...errors import InvalidArgument

VERSION = "1.0"
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)")
_OLDEST = 17
_TIME = (1980, 1, 1, 0, 0, 0)


def named(name: str) -> None:
    """Raises InvalidArgument for a name that a package cannot have beside Python's own and numpy."""
    if keyword.iskeyword(name) or name.lower() in {*sys.stdlib_module_names, "numpy", "orthrus"}:
        raise InvalidArgument("a Python package cannot be called so", found=name,
                              cure="choose another name with --name")


def _tag(files: Sequence[Path], arch: str) -> str:
    """The platform, as pip names it."""
    asked = [int(found[1]) for file in files if file.suffix == ".so"
             for found in _GLIBC.finditer(file.read_bytes())]
    return f"py3-none-manylinux_2_{max(_OLDEST, *asked)}_{arch}" if asked else f"py3-none-linux_{arch}"


def write(name: str, files: Sequence[Path], arch: str, folder: Path) -> Path:
    """Write the wheel of a package `name` made of `files`."""
    tag = _tag(files, arch)
    path, info = folder / f"{name}-{VERSION}-{tag}.whl", f"{name}-{VERSION}.dist-info"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
                    "Summary: A model compiled by Orthrus\nRequires-Python: >=3.9\nRequires-Dist: numpy\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: orthrus\nRoot-Is-Purelib: false\nTag: {tag}\n"}
    contents = {f"{name}/{file.name}": file.read_bytes() for file in files}
    contents.update((f"{info}/{file}", text.encode()) for file, text in texts.items())
    record = "".join(f"{file},sha256={_digest(data)},{len(data)}\n" for file, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in contents.items():
            entry = zipfile.ZipInfo(file, _TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
