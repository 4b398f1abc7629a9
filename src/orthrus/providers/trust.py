"""Whether a compiled part may run: it is machine code, and a model that brings some is no data any more.

In: what the program says in `ep.context_trust`, and a part as a file keeps it. Out: nothing, or the error
that refuses the part. Without that entry nothing of the part is used, not even read. A signature is Ed25519's
over all that a part is: its bytes, the provider it is for, version, target and notes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import Fail, InvalidArgument
from ..ir import Node
from ..kernels import Stored
from ..records import dataclass

KEY = "ep.context_trust"
SIGN = "ep.context_sign"

_DOMAIN = b"orthrus: a compiled part, 1\0"
_PUBLIC, _SIGNATURE = r"[0-9a-fA-F]{64}\Z", r"[0-9a-f]{128}\Z"
_CURE = (f"for a file that you trust as you would a shared library: InferenceSession(..., trust=True), or "
         f"{KEY}=1; for parts signed by somebody you trust, the public key in its place; else use the model "
         "that this one was compiled from")


@dataclass(frozen=True)
class Trust:
    """`everything`: whatever compiled part the model holds; else those signed by one of `keys`, the public
    keys, 32 bytes each. `read`: what gives the bytes of a part by the name of its file, where that is not
    to be found in the model's folder."""

    everything: bool = False
    keys: tuple[bytes, ...] = ()
    read: Callable[[str], bytes] | None = None

    @classmethod
    def asked(cls, entries: Mapping[str, str], read: Callable[[str], bytes] | None = None) -> Trust:
        """What a session's configuration entries say. Raises InvalidArgument for what cannot be read."""
        text = entries.get(KEY, "")
        if text in ("", "0", "1"):
            return cls(text == "1", read=read)
        words = [word.strip() for word in text.split(",")]
        if not all(re.match(_PUBLIC, word) for word in words):
            raise InvalidArgument(f"the value of configuration key {KEY!r} cannot be read", found=text[:200],
                                  expected="1, 0, or public keys of 64 hexadecimal digits each, separated by "
                                  "commas", cure="orthrus key FILE shows the public key of a private one")
        return cls(False, tuple(map(bytes.fromhex, words)), read)

    def ask(self, node: Node, source: str) -> None:
        """Whether there is any part that is trusted. Raises Fail, before anything of the part of `node` is
        looked at."""
        if not self.everything and not self.keys:
            raise Fail("the model holds a compiled part, which is machine code, and nobody said that it may "
                       "run", node=node, found=f"a part compiled for {source}",
                       expected=f"the configuration key {KEY}", cure=_CURE)

    def check(self, node: Node, source: str, stored: Stored) -> None:
        """Raises Fail for a part that is not trusted."""
        if self.everything:
            return
        if not re.match(_SIGNATURE, stored.signature):
            raise Fail("a compiled part is not signed, and only signed ones are trusted", node=node,
                       found=stored.signature[:200] or "no signature",
                       expected=f"the signature of a key in {KEY}",
                       cure="orthrus compile --sign FILE signs what it makes")
        signature, message = bytes.fromhex(stored.signature), _message(source, stored)
        if not any(_holds(key, signature, message) for key in self.keys):
            raise Fail("a compiled part is not what any of the trusted keys has signed", node=node,
                       found="a signature of another key, or of another content",
                       expected=f"the signature of a key in {KEY}",
                       cure="get the file again from where it was made, or name its maker's public key")


class Signer:
    """Signs compiled parts with the private key in a file of PEM. Raises Fail for a file that holds none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        cure = "orthrus key FILE makes a key"
        try:
            with open(path, "rb") as file:
                made = _ed25519().serialization.load_pem_private_key(file.read(), None)
        except (OSError, ValueError, TypeError) as error:
            raise Fail(f"the key {os.fspath(path)} cannot be read", found=error,
                       expected="a private key of Ed25519 in PEM, without a password", cure=cure) from None
        if not isinstance(made, _ed25519().private):
            raise Fail(f"the key {os.fspath(path)} is none to sign with", found=type(made).__name__,
                       expected="a private key of Ed25519", cure=cure)
        self._key: Any = made

    @classmethod
    def asked(cls, entries: Mapping[str, str]) -> Signer | None:
        """Who signs, by a session's configuration entries."""
        return cls(entries[SIGN]) if entries.get(SIGN) else None

    @property
    def public(self) -> str:
        """The public key, in hexadecimal digits."""
        text: str = self._key.public_key().public_bytes_raw().hex()
        return text

    def signed(self, source: str, stored: Stored) -> Stored:
        """`stored`, made by the provider `source`, with a signature."""
        return replace(stored, signature=self._key.sign(_message(source, stored)).hex())


def new_key(path: str | os.PathLike[str]) -> None:
    """Write a new private key, which its owner alone can read. Raises OSError, also where the file is there
    already."""
    kinds = _ed25519()
    pem = kinds.private.generate().private_bytes(
        kinds.serialization.Encoding.PEM, kinds.serialization.PrivateFormat.PKCS8,
        kinds.serialization.NoEncryption())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def _message(source: str, stored: Stored) -> bytes:
    """What is signed: a digest of everything, each piece with its length before it."""
    texts = (source, stored.version, stored.target, stored.notes)
    digest = hashlib.sha256()
    for piece in (*(text.encode("utf-8", "surrogateescape") for text in texts), stored.data):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return _DOMAIN + digest.digest()


def _holds(key: bytes, signature: bytes, message: bytes) -> bool:
    kinds = _ed25519()
    try:
        kinds.public.from_public_bytes(key).verify(signature, message)
        return True
    except (kinds.invalid, ValueError):
        return False


class _Kinds:
    """What is used of the package `cryptography`."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self.serialization: Any = serialization
        self.private: Any = ed25519.Ed25519PrivateKey
        self.public: Any = ed25519.Ed25519PublicKey
        self.invalid = InvalidSignature


def _ed25519() -> _Kinds:
    try:
        return _Kinds()
    except ImportError as error:
        raise Fail("signatures need the package cryptography", found=error,
                   cure="pip install orthrus-runtime[sign]") from None
