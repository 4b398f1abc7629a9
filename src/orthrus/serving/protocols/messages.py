"""The protocol's protobuf messages, made from the text in `open_inference.proto` when they are first needed.

In: that file, in the part of proto3 that it is written in. Out: message classes by name, and the methods of
its service. No other tool is needed, and the classes are in a pool of their own: a client's generated ones
in the same process don't meet them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TEXT = Path(__file__).with_name("open_inference.proto")
TOKEN = re.compile(r'//[^\n]*|"[^"]*"|[A-Za-z_][\w.]*|\d+|[{}<>=;,()]')


class Method(NamedTuple):
    """A call of the service; `streams`: both sides are streams."""

    name: str
    request: Any
    response: Any
    streams: bool


class Messages(NamedTuple):
    """`types` by name, `methods` of `service`, its full name."""

    types: dict[str, Any]
    service: str
    methods: list[Method]


class _Parser:
    """Reads one file into protobuf's own description of it."""

    def __init__(self, text: str) -> None:
        from google.protobuf import descriptor_pb2

        self.pb = descriptor_pb2
        self.tokens = [token for token in TOKEN.findall(text) if not token.startswith("//")]
        self.place = 0
        self.file = descriptor_pb2.FileDescriptorProto(name=TEXT.name, syntax="proto3")
        self.kinds = {name.removeprefix("TYPE_").lower(): number
                      for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()}
        self.enums = set(re.findall(r"^enum (\w+)", text, re.M))

    def take(self, *expected: str) -> str:
        token = self.tokens[self.place]
        assert not expected or token in expected, (token, expected)
        self.place += 1
        return token

    def read(self) -> Any:
        while self.place < len(self.tokens):
            match self.take("syntax", "package", "message", "enum", "service"):
                case "syntax":
                    self.place += 3
                case "package":
                    self.file.package = self.take()
                    self.take(";")
                case "message":
                    self.message(self.file.message_type.add())
                case "enum":
                    self.enum(self.file.enum_type.add())
                case "service":
                    self.service(self.file.service.add())
        return self.file

    def message(self, made: Any) -> None:
        made.name = self.take()
        self.take("{")
        while (token := self.take()) != "}":
            if token == "message":
                self.message(made.nested_type.add())
            elif token == "oneof":
                made.oneof_decl.add(name=self.take())
                self.take("{")
                while (token := self.take()) != "}":
                    self.field(made, token).oneof_index = len(made.oneof_decl) - 1
            else:
                self.field(made, token)

    def field(self, made: Any, token: str) -> Any:
        label = self.pb.FieldDescriptorProto
        field = made.field.add(label=label.LABEL_OPTIONAL)
        if token == "map":
            self.take("<")
            entry = self.pb.DescriptorProto()
            for number, name in enumerate(("key", "value"), 1):
                self.typed(entry.field.add(name=name, number=number, label=label.LABEL_OPTIONAL), self.take())
                self.take(",", ">")
        elif token == "repeated":
            field.label = label.LABEL_REPEATED
            self.typed(field, self.take())
        else:
            self.typed(field, token)
        field.name = self.take()
        self.take("=")
        field.number = int(self.take())
        self.take(";")
        if token == "map":
            entry.name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
            entry.options.map_entry = True
            made.nested_type.append(entry)
            field.label = label.LABEL_REPEATED
            self.typed(field, entry.name)
        return field

    def typed(self, field: Any, name: str) -> None:
        if name in self.kinds:
            field.type = self.kinds[name]
        else:
            field.type = self.kinds["enum" if name in self.enums else "message"]
            field.type_name = name

    def enum(self, made: Any) -> None:
        made.name = self.take()
        self.take("{")
        while (name := self.take()) != "}":
            self.take("=")
            made.value.add(name=name, number=int(self.take()))
            self.take(";")

    def service(self, made: Any) -> None:
        made.name = self.take()
        self.take("{")
        while self.take("rpc", "}") == "rpc":
            method = made.method.add(name=self.take())
            method.input_type, method.client_streaming = self.side()
            self.take("returns")
            method.output_type, method.server_streaming = self.side()
            self.take(";")

    def side(self) -> tuple[str, bool]:
        self.take("(")
        name = self.take()
        streams = name == "stream"
        if streams:
            name = self.take()
        self.take(")")
        return name, streams


@cache
def messages() -> Messages:
    """The protocol's messages and methods."""
    from google.protobuf import descriptor_pool, message_factory

    file = _Parser(TEXT.read_text(encoding="utf-8")).read()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {message.name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{message.name}")) for message in file.message_type}
    [service] = file.service
    return Messages(types, f"{file.package}.{service.name}", [
        Method(method.name, types[method.input_type], types[method.output_type], method.client_streaming)
        for method in service.method])
