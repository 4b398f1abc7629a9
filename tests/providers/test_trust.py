"""Compiled parts are machine code: nothing of them is used unless the program says so, by trusting the file
or the key that signed it; and what is trusted answers for nothing but itself.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evil_packages import TRAP, attribute, changed, evil
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import knobs, providers
from orthrus.codegen.object import override
from orthrus.errors import ALL, EPFail, Fail, InvalidArgument
from orthrus.lowering.package import ahead as package
from orthrus.providers import CPUExecutionProvider, ExecutionProvider
from orthrus.providers import ep_node as stored_parts

pytestmark = needs("generated code")

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = RNG.standard_normal((4, 8)).astype(np.float32)
TRUST = "ep.context_trust"


def network() -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return bytes(model(nodes, [info("x", shape=(4, 8))], [info("y", shape=(4, 8))], {"w": W}
                       ).SerializeToString())


def expected() -> np.ndarray:
    return np.maximum(X @ W, 0)


def compiled(**entries: str) -> bytes:
    options = ort.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    for key, value in entries.items():
        options.add_session_config_entry(f"ep.context_{key}", value)
    made: bytes = ort.ModelCompiler(options, network()).compile_to_bytes()
    return made


@pytest.fixture(scope="module")
def ahead() -> bytes:
    """The network, compiled."""
    return compiled()


def with_entry(value: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_session_config_entry(TRUST, value)
    return options


def computed(source: Any, *given: Any, **more: Any) -> np.ndarray:
    found: np.ndarray = ort.InferenceSession(source, *given, **more).run(None, {"x": X})[0]
    return found


# who trusts

@pytest.mark.parametrize("say", [lambda m: computed(m, trust=True), lambda m: computed(m, with_entry("1"))])
def test_trusted_parts_run(ahead: bytes, say: Callable[[bytes], np.ndarray]) -> None:
    np.testing.assert_allclose(say(ahead), expected(), rtol=1e-5)


def test_a_pickle_carries_the_trust_of_its_session(ahead: bytes) -> None:
    again = pickle.loads(pickle.dumps(ort.InferenceSession(ahead, trust=True)))
    np.testing.assert_allclose(again.run(None, {"x": X})[0], expected(), rtol=1e-5)


def in_a_branch(part: onnx.ModelProto) -> onnx.ModelProto:
    """The compiled part inside an `If`."""
    (node,) = part.graph.node
    body = helper.make_graph([node], "body", [], [part.graph.output[0]])
    made = model([helper.make_node("If", ["yes"], ["z"], then_branch=body, else_branch=body)],
                 [info("yes", onnx.TensorProto.BOOL, shape=()), info("x", shape=(4, 8))],
                 [info("z", shape=(4, 8))])
    made.opset_import.extend([helper.make_opsetid("com.microsoft", 1)])
    return made


def in_a_function(part: onnx.ModelProto) -> onnx.ModelProto:
    """The compiled part inside a function of the model's own."""
    (node,) = part.graph.node
    made = model([helper.make_node("Inner", ["x"], ["y"], domain="mine")], [info("x", shape=(4, 8))],
                 [info("y", shape=(4, 8))])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made.functions.append(helper.make_function("mine", "Inner", ["x"], ["y"], [node], imports))
    made.opset_import.extend([helper.make_opsetid("mine", 1), imports[1]])
    return made


PLACES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "the graph": lambda made: made, "a branch": in_a_branch, "a function": in_a_function}
SAYS: dict[str, Callable[[bytes], Any]] = {
    "nothing": ort.InferenceSession,
    "the provider": lambda m: ort.InferenceSession(m, providers=["CPUExecutionProvider"]),
    "False": lambda m: ort.InferenceSession(m, trust=False),
    "0": lambda m: ort.InferenceSession(m, with_entry("0")),
    "another key of the cache": lambda m: ort.InferenceSession(m, _enabled()),
}


def _enabled() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_embed_mode", "1")
    return options


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing opens a package, or a file that a node names."""
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a part that nobody trusts was looked at")
    monkeypatch.setattr(package.Package, "__init__", refuse)
    monkeypatch.setattr(stored_parts, "_read", refuse)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("say", SAYS)
def test_parts_that_nobody_trusts_are_refused(ahead: bytes, untouched: None, say: str, place: str) -> None:
    made = PLACES[place](onnx.ModelProto.FromString(ahead))
    with pytest.raises(Fail, match="machine code") as caught:
        SAYS[say](made.SerializeToString())
    assert "EPContext" in str(caught.value.node)
    assert caught.value.cure is not None and "trust=True" in caught.value.cure and TRUST in caught.value.cure


def test_a_file_beside_is_not_opened_without_trust(ahead: bytes, untouched: None, tmp_path: Path) -> None:
    with pytest.raises(Fail, match="machine code"):
        ort.InferenceSession(beside(ahead, tmp_path, "part.bin"))


def test_a_model_cannot_trust_itself(ahead: bytes, untouched: None) -> None:
    made = onnx.ModelProto.FromString(ahead)
    asked = {TRUST: "1", "trust": True, "session_config": {TRUST: "1"}, "config_entries": {TRUST: "1"}}
    made.metadata_props.add(key="ort_config", value=json.dumps({"session_options": asked, **asked}))
    made.metadata_props.add(key=TRUST, value="1")
    with pytest.raises(Fail, match="machine code"):
        ort.InferenceSession(made.SerializeToString(), read_config_from_model=1)


def test_a_provider_of_the_users_own_is_asked_for_nothing_that_is_not_trusted() -> None:
    class Own(ExecutionProvider):
        name = "OwnExecutionProvider"

        def load(self, part: Any, stored: Any) -> Any:
            raise AssertionError("it was asked")
    made = model([helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", source=Own.name,
                                   ep_cache_context="code")], [info("x")], [info("y")])
    made.opset_import.extend([helper.make_opsetid("com.microsoft", 1)])
    providers.register(Own)
    try:
        with pytest.raises(Fail, match="machine code"):
            ort.InferenceSession(made.SerializeToString(), providers=[Own.name])
    finally:
        providers.unregister(Own.name)


@pytest.mark.parametrize("value", ["yes", "2", "true", "ab" * 31, "ab" * 33, "gg" * 32, "ab" * 32 + ",",
                                   "ab" * 32 + ",1", "/etc/passwd", "1,1"])
def test_what_trust_cannot_be(ahead: bytes, untouched: None, value: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        ort.InferenceSession(ahead, trust=value)


@pytest.mark.parametrize("value", [1, b"1", ["1"]])
def test_what_trust_is_no_type_of(ahead: bytes, value: Any) -> None:
    with pytest.raises(TypeError, match="trust"):
        ort.InferenceSession(ahead, trust=value)


def test_only_those_who_store_load() -> None:
    """Providers whose stored parts are code are those that the documentation names."""
    storing = {name for name, kind in providers.known(tuple(providers.ALL)).items()
               if name in providers.ALL and kind.load is not ExecutionProvider.load}
    assert storing <= {f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "ROCM", "IREE", "MIGraphX",
                                                                "SpaceMIT")}
    assert CPUExecutionProvider.name in storing


# what is trusted answers for itself alone

ONE_PROCESS = """
import sys, threading, numpy as np, orthrus as ort
from orthrus.run import keeping, session_key
session_key._SETTLED, keeping._LONG = -1e9, 1e9
for name in sys.argv[1:]:
    made = ort.InferenceSession(name, trust="trusted" in name or None)
    print(type(made._sess._engine).__name__, end=" ", flush=True)
    if name.endswith("run.onnx"):
        np.testing.assert_allclose(made.run(None, {"x": np.load("x.npy")})[0], np.load("y.npy"), rtol=1e-5)
    del made
    [t.join() for t in threading.enumerate() if t.name == "orthrus-keep"]
"""
"""A session for each file named, run where its name says so."""
OWN, GOOD = "own_run.onnx", "trusted_good_run.onnx"
LOADED, EVIL = "trusted_evil.onnx", "trusted_evil_run.onnx"


@pytest.fixture
def stranger(ahead: bytes, tmp_path: Path) -> Path:
    """A folder with the user's own model, plain and compiled, and a stranger's compiled one, with kernels of
    the same names."""
    for name, made in {OWN: network(), GOOD: ahead, LOADED: evil(ahead), EVIL: evil(ahead)}.items():
        (tmp_path / name).write_bytes(made)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", expected())
    return tmp_path


def process(folder: Path, *models: str) -> list[str]:
    """What became of the sessions, where the process ended well; else the signal that ended it."""
    done = subprocess.run([sys.executable, "-c", ONE_PROCESS, *models], cwd=folder, capture_output=True,
                          text=True, check=False, timeout=120,
                          env={**os.environ, "ORTHRUS_CACHE": "1", "ORTHRUS_CACHE_DIR": str(folder / "cache"),
                               "ORTHRUS_CACHE_SESSIONS": "64"})
    assert done.returncode <= 0, done.stderr
    return done.stdout.split() if not done.returncode else [signal.Signals(-done.returncode).name]


def test_code_of_a_trusted_part_answers_for_no_other_model(stranger: Path) -> None:
    assert process(stranger, LOADED, OWN, LOADED, OWN, OWN) == ["Engine"] * 4 + ["Kept"]


def test_two_packages_do_not_see_each_others_code(stranger: Path) -> None:
    """Though their kernels went by the same names where they were made."""
    assert process(stranger, LOADED, GOOD, LOADED, GOOD) == ["Engine"] * 4


def test_code_of_a_trusted_part_stays_out_of_the_cache(stranger: Path) -> None:
    for _ in range(2):
        assert process(stranger, LOADED, OWN) == ["Engine", "Engine"]
    kept = [path for path in (stranger / "cache").rglob("*") if path.is_file()]
    assert any(path.parent.name == "sessions" for path in kept)
    assert not [path for path in kept if TRAP in path.read_bytes()]
    assert process(stranger, OWN) == ["Kept"]


def test_a_session_with_a_compiled_part_is_not_kept(stranger: Path) -> None:
    assert process(stranger, GOOD, GOOD, GOOD, GOOD) == ["Engine"] * 4
    assert not (stranger / "cache" / "sessions").exists()


def test_such_code_does_run_where_it_is_trusted(stranger: Path) -> None:
    """What the tests around here would see if it ran."""
    assert process(stranger, EVIL) in (["SIGILL"], ["SIGTRAP"])


def test_a_package_is_not_packed_again(ahead: bytes, tmp_path: Path) -> None:
    """Compiling a compiled model leaves its part as it came, and does not sign it."""
    pytest.importorskip("cryptography")
    made = onnx.ModelProto.FromString(ort.ModelCompiler(signing(tmp_path)[0], ahead).compile_to_bytes())
    assert attribute(made).s == attribute(onnx.ModelProto.FromString(ahead)).s
    assert "signature" not in {a.name for a in made.graph.node[0].attribute}


@pytest.mark.parametrize("name", ["../kernel", "", 3, None, "a/b", "a b"])
def test_kernels_of_a_package_are_named_by_words(ahead: bytes, name: Any) -> None:
    made = onnx.ModelProto.FromString(ahead)
    part = attribute(made)

    def rename(about: dict[str, Any]) -> None:
        about["steps"][0]["steps"][0][2] = name
    part.s = changed(part.s, rename)
    with pytest.raises(EPFail, match="no kernel is called"):
        ort.InferenceSession(made.SerializeToString(), trust=True)


def test_kernels_of_a_package_are_not_edited_nor_dumped(ahead: bytes, tmp_path: Path) -> None:
    """They have no text; and a name from a file leads to no file."""
    with knobs.setting(DUMP=str(tmp_path / "dump"), DUMP_WHAT="code"):
        made = ort.InferenceSession(ahead, trust=True)
        np.testing.assert_allclose(made.run(None, {"x": X})[0], expected(), rtol=1e-5)
    (plan,) = made._sess._engine.program.calls[0].kernel.run.plans.values()
    spec = plan.steps[0].spec
    (tmp_path / f"{override.file_name(spec)}.ll").write_text("no kernel")
    with knobs.setting(OVERRIDE=str(tmp_path)):
        made = ort.InferenceSession(ahead, trust=True)
        np.testing.assert_allclose(made.run(None, {"x": X})[0], expected(), rtol=1e-5)
    assert not list(tmp_path.glob(f"dump/**/{spec.template}*"))


@pytest.mark.parametrize(("change", "value"), [("input", onnx.TensorProto.UINT8),
                                               ("output", onnx.TensorProto.DOUBLE)])
def test_a_part_in_a_graph_with_other_types_is_refused(ahead: bytes, change: str, value: int) -> None:
    made = onnx.ModelProto.FromString(ahead)
    getattr(made.graph, change)[0].type.tensor_type.elem_type = value
    with pytest.raises(EPFail, match="a package of another part"):
        ort.InferenceSession(made.SerializeToString(), trust=True)


# signatures

def signing(folder: Path, name: str = "key.pem") -> tuple[ort.SessionOptions, str]:
    """Options that sign with a new key, and its public key."""
    from orthrus.providers.trust import Signer, new_key

    new_key(folder / name)
    options = ort.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    options.add_session_config_entry("ep.context_sign", str(folder / name))
    return options, Signer(folder / name).public


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The network, compiled and signed, and the public key."""
    pytest.importorskip("cryptography")
    options, public = signing(tmp_path_factory.mktemp("signed"))
    return ort.ModelCompiler(options, network()).compile_to_bytes(), public


def test_what_a_trusted_key_signed_runs(signed: tuple[bytes, str], tmp_path: Path) -> None:
    made, public = signed
    other = signing(tmp_path)[1]
    for trust in (public, public.upper(), f"{other}, {public}", True):
        np.testing.assert_allclose(computed(made, trust=trust), expected(), rtol=1e-5)
    path = beside(made, tmp_path, "part.bin")
    (tmp_path / "part.bin").write_bytes(attribute(onnx.ModelProto.FromString(made)).s)
    np.testing.assert_allclose(computed(path, trust=public), expected(), rtol=1e-5)


ALTERED: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "no signature": lambda m: _drop(m, "signature"),
    "an empty one": lambda m: _set(m, "signature", b""),
    "one of another length": lambda m: _set(m, "signature", attribute(m, "signature").s[:-2]),
    "one that is no number": lambda m: _set(m, "signature", b"zz" * 64),
    "zeros": lambda m: _set(m, "signature", b"00" * 64),
    "a line more": lambda m: _set(m, "signature", attribute(m, "signature").s + b"\n"),
    "another version": lambda m: _set(m, "ep_sdk_version", b"package 2"),
    "another target": lambda m: _set(m, "hardware_architecture", b"elsewhere"),
    "other notes": lambda m: _set(m, "notes", b""),
    "notes moved into the target": lambda m: (
        _set(m, "hardware_architecture", attribute(m, "hardware_architecture").s + attribute(m, "notes").s),
        _set(m, "notes", b"")),
    "other code": lambda m: _set(m, "ep_cache_context", attribute(
        onnx.ModelProto.FromString(evil(m.SerializeToString()))).s),
    "a byte more": lambda m: _set(m, "ep_cache_context", attribute(m).s + b"\0"),
    "a byte less": lambda m: _set(m, "ep_cache_context", attribute(m).s[:-1]),
}


def _set(made: onnx.ModelProto, name: str, value: bytes) -> None:
    attribute(made, name).s = value


def _drop(made: onnx.ModelProto, name: str) -> None:
    made.graph.node[0].attribute.remove(attribute(made, name))


@pytest.mark.parametrize("how", ALTERED)
def test_parts_that_were_altered_are_refused(signed: tuple[bytes, str], how: str,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    made = onnx.ModelProto.FromString(signed[0])
    ALTERED[how](made)
    monkeypatch.setattr(package.Package, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(Fail, match="signed") as caught:
        ort.InferenceSession(made.SerializeToString(), trust=signed[1])
    assert "EPContext" in str(caught.value.node) and caught.value.cure


def test_what_another_key_signed_is_refused(signed: tuple[bytes, str], ahead: bytes, tmp_path: Path) -> None:
    other = signing(tmp_path)[1]
    with pytest.raises(Fail, match="not what any of the trusted keys has signed"):
        ort.InferenceSession(signed[0], trust=other)
    with pytest.raises(Fail, match="is not signed"):
        ort.InferenceSession(ahead, trust=other)


@pytest.mark.slow
def test_a_signed_file_with_a_flipped_byte_never_brings_other_code(signed: tuple[bytes, str],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a session is made of it after all, what was flipped is no part of the code."""
    raw, public = signed
    whole = attribute(onnx.ModelProto.FromString(raw)).s
    opened: list[bytes] = []
    real = package.Package.__init__

    def note(self: Any, data: Any, kept: bool = False) -> None:
        opened.append(bytes(data))
        real(self, data, kept)
    monkeypatch.setattr(package.Package, "__init__", note)
    rng, refused = random.Random(7), 0
    for _ in range(400):
        mutated = bytearray(raw)
        mutated[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        try:
            ort.InferenceSession(bytes(mutated), trust=public)
        except (*ALL, ValueError, TypeError, RuntimeError):
            refused += 1
    assert refused > 380 and set(opened) <= {whole}


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    def written(key: Any, password: bytes | None) -> bytes:
        lock = (serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption())
        made: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        return made
    for content in (b"", b"no key", written(ec.generate_private_key(ec.SECP256R1()), None),
                    written(ed25519.Ed25519PrivateKey.generate(), b"secret"), None):
        path = tmp_path / "k.pem"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(Fail, match=r"the key .*k\.pem") as caught:
            compiled(sign=str(path))
        assert caught.value.cure == "orthrus key FILE makes a key"


def test_the_commands(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from typer.testing import CliRunner

    from orthrus.tools.cli.main import app

    def said(*words: Any, code: int = 0) -> str:
        found = CliRunner().invoke(app, [*map(str, words)])
        assert found.exit_code == code, found.output
        return found.output
    (tmp_path / "m.onnx").write_bytes(network())
    key, made = tmp_path / "key.pem", tmp_path / "c.onnx"
    public = said("key", key).split()[-1]
    assert said("key", key).split() == [public] and key.stat().st_mode & 0o777 == 0o600
    assert public in said("compile", tmp_path / "m.onnx", "--out", made, "--sign", key)
    assert "compiled ahead" in said("explain", made, "--trust", public)
    said("run", made, "--trust", "1")
    assert "machine code" in said("run", made, code=1)
    assert "is none of" not in said("run", made, "--trust", "ab" * 32, code=1)


def test_without_the_package_that_signs(ahead: bytes, signed: tuple[bytes, str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(Fail, match="signatures need the package cryptography"):
        ort.InferenceSession(signed[0], trust=signed[1])
    np.testing.assert_allclose(computed(ahead, trust=True), expected(), rtol=1e-5)


# files beside the model

def beside(made: bytes, folder: Path, location: str) -> Path:
    """The compiled model in `folder`, its part in a file there."""
    proto = onnx.ModelProto.FromString(made)
    _set(proto, "ep_cache_context", location.encode())
    attribute(proto, "embed_mode").i = 0
    path = folder / "c.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


FILES: dict[str, Callable[[Path], Any]] = {
    "pipe": lambda at: os.mkfifo(at),
    "folder": lambda at: at.mkdir(),
    "link to a device": lambda at: at.symlink_to("/dev/zero"),
    "link to a terminal": lambda at: at.symlink_to("/dev/tty"),
    "link out": lambda at: at.symlink_to("/etc/hostname"),
    "link to itself": lambda at: at.symlink_to(at),
    "hard link": lambda at: os.link(at.parent.parent / "secret", at),
    "huge": lambda at: _sparse(at, 1 << 43),
    "missing": lambda at: None,
}


@pytest.fixture
def impatient() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise AssertionError("it waits")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", FILES)
def test_files_beside_that_are_none(ahead: bytes, impatient: None, kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "models"
    folder.mkdir()
    try:
        FILES[kind](folder / "part.bin")
    except OSError as error:
        pytest.skip(f"this file system has no such file: {error}")
    with pytest.raises(EPFail, match="The compiled part's file"):
        ort.InferenceSession(beside(ahead, folder, "part.bin"), trust=True)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "sub/../../secret", "..\\secret", "C:x",
                                      ".", "/", "file:///etc/hostname", "part.bin\0", "up/secret", "x" * 5000,
                                      "\udcff"])
def test_locations_that_lead_elsewhere(ahead: bytes, impatient: None, location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "up").symlink_to(tmp_path)
    path = beside(ahead, folder, "part.bin")
    proto = onnx.load(path)
    _set(proto, "ep_cache_context", location.encode("utf-8", "surrogateescape"))
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ALL, match="compiled part|UTF-8"):
        ort.InferenceSession(path, trust=True)


def test_a_file_beside_is_read_below_the_folder_too(ahead: bytes, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "part.bin").write_bytes(attribute(onnx.ModelProto.FromString(ahead)).s)
    path = beside(ahead, tmp_path, "sub/part.bin")
    np.testing.assert_allclose(computed(path, trust=True), expected(), rtol=1e-5)
