"""Compiled parts inside a model: the EPContext nodes of onnxruntime's context cache.

In: a part and the bytes its provider made of it. Out: a node that stands for the part, and the bytes again.
The bytes are in the node, or in a file of the model's folder; they are machine code, which nobody gets to
see without the program's trust.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from ..errors import EPFail, InvalidGraph
from ..ir import Node
from ..kernels import Part, Stored
from ..limits import current
from .trust import Trust

OP_TYPE, DOMAIN = "EPContext", "com.microsoft"
NO_FOLDER = "the model came as bytes, which have no folder"


def is_context(node: Node) -> bool:
    """Whether `node` stands for a compiled part."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN


def maker(node: Node) -> str:
    """The name of the provider that compiled what a context node stands for."""
    return str(node.attrs.get("source", ""))


def context_node(part: Part, stored: Stored, file: str | None, prefix: str = "") -> Node:
    """The node that stands for `part`; its bytes lie in `file` beside the model, in the node itself where
    that is None. It reads and makes the part's values without being noted there: good for being written."""
    signature = {"signature": stored.signature} if stored.signature else {}
    node = Node(OP_TYPE, DOMAIN, 1, None, (), {
        "main_context": 1, "embed_mode": int(file is None), "source": part.provider,
        "ep_cache_context": stored.data.decode("utf-8", "surrogateescape") if file is None else file,
        "ep_sdk_version": stored.version, "hardware_architecture": stored.target, "notes": stored.notes,
        "partition_name": part.name, "onnx_model_filename": os.path.basename(part.info.path or ""),
        **signature}, prefix + part.name)
    node.inputs, node.outputs = list(part.inputs), list(part.outputs)
    return node


def part_of(node: Node, info: object) -> Part:
    """The part that a context node is."""
    name = str(node.attrs.get("partition_name") or node.label)
    return Part(maker(node), [node], [v for v in node.inputs if v is not None],
                [v for v in node.outputs if v is not None], name, info)  # type: ignore[arg-type]


def stored_of(node: Node, model_path: str | None, trust: Trust) -> Stored:
    """The bytes behind a context node, which `trust` lets pass. Raises Fail for a part that is not trusted,
    InvalidGraph for a node that has none, EPFail for a file that cannot be had."""
    trust.ask(node, maker(node))
    content = node.attrs.get("ep_cache_context")
    if not isinstance(content, str) or not content:
        raise InvalidGraph("an EPContext node holds nothing", node=node, expected="ep_cache_context")
    if node.attrs.get("embed_mode", 1):
        data = content.encode("utf-8", "surrogateescape")
    else:
        data = _read(node, content, model_path) if trust.read is None else _given(node, content, trust.read)
    stored = Stored(data, *(str(node.attrs.get(key, "")) for key in (
        "ep_sdk_version", "hardware_architecture", "notes", "signature")))
    trust.check(node, maker(node), stored)
    return stored


def _given(node: Node, file: str, read: Callable[[str], bytes]) -> bytes:
    """What the program's own function has for a file."""
    try:
        return read(file)
    except Exception as error:
        raise EPFail("the function that reads compiled parts has failed", node=node,
                     found=f"{type(error).__name__}: {error}", expected=f"the data of {file}",
                     cure="see set_ep_context_data_read_func") from error


def _read(node: Node, file: str, model_path: str | None) -> bytes:
    from ..load.folder import Folder

    if model_path is None:
        raise EPFail(f"the compiled part is in a file beside the model, and {NO_FOLDER}", node=node,
                     found=file, cure="create the session from the model's path, or embed compiled parts")
    folder = Folder(os.path.dirname(os.path.abspath(model_path)), model_path,
                    "The compiled part's file")
    return folder.read(file, current().max_tensor_bytes, partial(EPFail, node=node))
