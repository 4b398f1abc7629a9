"""Shapes of no elements, of many axes, of other ranks; strings that are no text; outputs of other types and
shapes, the same twice; memory that is not aligned: the library answers as onnxruntime's own, natively and
in the service."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dropin
import onnx
import pytest
from onnx import TensorProto, helper
from skips import needs

from orthrus.native.dropin import build

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
OF_KINDS = {
    "kind_tensor": "g (float[2, 2] x) => (float[2, 2] y) { y = Neg(x) }",
    "kind_tensor_in_service": "g (float[N, M] x) => (float[N, M] y) {"
                              " q = SequenceConstruct(x) y = ConcatFromSequence <axis = 0>(q) }",
    "kind_sequence": "g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }",
    "kind_optional": "g (optional(float[2, 2]) x) => (bool y) { y = OptionalHasElement(x) }",
    "kind_overridable": "g (float[2, 2] x = {1, 2, 3, 4}) => (float[2, 2] y) { y = Neg(x) }",
    "unread": "g (float[N] x, float[N] u) => (float[N] y) { y = Neg(x) }",
    "unread_texts": "g (float[N] x, string[M] u) => (float[N] y) { y = Neg(x) }",
}
SUBJECTS = ("creations", "two", "two_in_service", "strings", "rank", "rank_in_service", "kind_map", "empty",
            *OF_KINDS)


def _of_any_rank(*before: onnx.NodeProto) -> onnx.ModelProto:
    nodes = [*before, helper.make_node("Neg", ["r" if before else "x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), ir_version=9,
                             opset_imports=[helper.make_opsetid("", 20)])


def _of_maps() -> onnx.ModelProto:
    """A table of the words of a map."""
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_map_type_proto(TensorProto.STRING, number)
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])])
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)])


def write_models(made: Path) -> None:
    for name, text in OF_KINDS.items():
        onnx.save(onnx.parser.parse_model(dropin.HEAD + text), made / f"{name}.onnx")
    onnx.save(_of_maps(), made / "kind_map.onnx")
    onnx.save(dropin.models()["map"][0], made / "empty.onnx")
    for name in ("two", "two_in_service", "strings"):
        onnx.save(dropin.models()[name][0], made / f"{name}.onnx")
    onnx.save(_of_any_rank(), made / "rank.onnx")
    onnx.save(_of_any_rank(helper.make_node("SequenceConstruct", ["x"], ["q"]),
                           helper.make_node("Constant", [], ["z"], value_int=0),
                           helper.make_node("SequenceAt", ["q", "z"], ["r"])), made / "rank_in_service.onnx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program and the models."""
    made = tmp_path_factory.mktemp("odd")
    write_models(made)
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g",
                    f"-I{build.built() / 'include'}", Path(__file__).parent / "odd_values.c", "-o",
                    made / "odd_values", "-ldl"], check=True)
    return made


def answers(library: Path, program: Path, folder: Path, subject: str) -> list[str]:
    """What the program writes of one subject."""
    done = subprocess.run([program, library, folder, subject], env=dropin.surroundings(),
                          capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_answers_are_onnxruntimes(subject: str, folder: Path) -> None:
    theirs = dropin.their_library()
    program = folder / "odd_values"
    ours = answers(build.built() / "lib" / build.SONAME, program, folder, subject)
    assert len(ours) > 5
    assert ours == answers(theirs, program, folder, subject)
