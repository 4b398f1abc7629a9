"""`orthrus key`: the key that signs compiled models.

In: a file's path. Out: the public key on stdout; where there was no file, a new private key in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...shown import tell

FileArgument = Annotated[Path, typer.Argument(
    metavar="FILE", help="The private key, in PEM; made where there is none.", show_default=False)]


def command(file: FileArgument) -> None:
    """Make a private key to sign compiled models with, or read the one that is there, and print its public
    key, which sessions trust."""
    from ...providers.trust import Signer, new_key

    if not file.exists():
        new_key(file)
        tell(f"wrote {file}, which nobody else should get to see", err=True)
    tell(Signer(file).public)
