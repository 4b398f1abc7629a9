"""Model packages: what is read, selected and written is what onnxruntime reads, selects and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import orthrus

INFO = {"model_file": "model.onnx", "session_options": {"session.intra_op_num_threads": "1"}}
PLAIN = {"decoder": {"variants": {
    "gpu": {"variant_directory": "decoder/gpu", "ep": "CUDAExecutionProvider", "device": "gpu"},
    "npu": {"variant_directory": "decoder/cpu", "ep": "CPUExecutionProvider", "device": "npu"},
    "cpu": {"variant_directory": "decoder/cpu", "ep": "CPUExecutionProvider", "device": "cpu",
            "executor_info": {"ort": INFO}},
    "other": {"variant_directory": "decoder/cpu", "ep": "CPUExecutionProvider"}}}}


def write(root: Path, **manifest: Any) -> Path:
    for name in ("cpu", "gpu"):
        (root / "decoder" / name).mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [
        helper.make_tensor_value_info("x", 1, ["n"])], [helper.make_tensor_value_info("y", 1, ["n"])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              root / "decoder" / "cpu" / "model.onnx")
    (root / "manifest.json").write_text(json.dumps({"schema_version": "1.0", "components": PLAIN, **manifest}
                                                   ))
    return root


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write(tmp_path / "package")


def engines() -> list[Any]:
    """Orthrus, and onnxruntime where it has packages."""
    try:
        import onnxruntime
    except ImportError:
        return [orthrus]
    return [orthrus, onnxruntime] if hasattr(onnxruntime, "ModelPackage") else [orthrus]


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.__name__)
def test_a_variant_for_the_provider_becomes_a_session(engine: Any, package: Path) -> None:
    context = engine.ModelPackageContext(str(package))
    assert (context.get_schema_version(), context.get_component_names()) == (1, ["decoder"])
    assert context.get_variant_names("decoder") == ["gpu", "npu", "cpu", "other"]
    assert context.get_variant_count("decoder") == 4 and context.get_component_count() == 1
    assert context.get_variant_ep_name("decoder", "gpu") == "CUDAExecutionProvider"
    found = context.select_component("decoder", engine.ModelPackageOptions(engine.SessionOptions()))
    assert found.get_selected_variant_name() == "cpu"
    assert found.get_selected_variant_folder_path() == str(package / "decoder" / "cpu")
    session = found.create_session()
    assert session.get_session_options().intra_op_num_threads == 1
    np.testing.assert_array_equal(session.run(None, {"x": np.ones(3, np.float32)})[0], -np.ones(3))
    options = engine.SessionOptions()
    options.intra_op_num_threads = 2
    assert found.create_session(options).get_session_options().intra_op_num_threads == 2


REFUSED = {
    "no such component": (lambda c, e: c.get_variant_names("x"), "Component model not found: x"),
    "no such variant": (lambda c, e: c.get_variant_ep_name("decoder", "x"), "Variant 'x' not found"),
    "parent": (lambda c, e: c.resolve_string_ref("../x"), "'..' segments are not allowed"),
    "absolute": (lambda c, e: c.resolve_string_ref("/etc/passwd"), "absolute or drive-rooted path"),
    "missing": (lambda c, e: c.resolve_string_ref("x", None, True), "does not exist"),
    "asset": (lambda c, e: c.resolve_string_ref("sha256:" + "0" * 64), "Asset URI not declared"),
    "select": (lambda c, e: c.select_component("x", e.ModelPackageOptions(e.SessionOptions())),
               "Component model not found")}


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.__name__)
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_package_has_not_is_refused(engine: Any, name: str, package: Path) -> None:
    ask, said = REFUSED[name]
    with pytest.raises(RuntimeError, match=said.replace(".", r"\.")):
        ask(engine.ModelPackageContext(str(package)), engine)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"schema_version": "x"}, "schema_version"), "major": ({"schema_version": "9.0"}, "major 9"),
    "layout": ({"layout": "x"}, "layout"), "components": ({"components": []}, "components"),
    "no variants": ({"components": {"c": {}}}, "variants"), "unknown": ({"extra": 1}, "extra"),
    "no file": ({"components": {"c": "nowhere"}}, "nowhere"),
    "outside": ({"components": {"c": "../c"}}, "not allowed"),
    "no folder": ({"components": {"c": {"variants": {"v": {"variant_directory": "none"}}}}}, "none"),
    "asset": ({"shared_assets": {"md5:0": "x"}}, "md5")}


@pytest.mark.parametrize("engine", engines(), ids=lambda e: e.__name__)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_refused(engine: Any, name: str, tmp_path: Path) -> None:
    told, said = BROKEN[name]
    with pytest.raises(RuntimeError, match=said):
        engine.ModelPackageContext(str(write(tmp_path, **told)))


def test_a_newer_minor_version_may_have_more_fields(tmp_path: Path) -> None:
    assert orthrus.ModelPackageContext(str(write(tmp_path, schema_version="1.7", more=1))).get_schema_version(
    ) == 1


def test_a_link_does_not_lead_out_of_a_package(package: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    (package / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(RuntimeError, match="leaves the package"):
        orthrus.ModelPackageContext(str(package)).resolve_string_ref("link")


def context_of(root: Path, **info: Any) -> Any:
    told = {"variants": {"v": {"variant_directory": "decoder/cpu", "ep": "CPUExecutionProvider",
                               "executor_info": {"ort": {**INFO, **info}}}}}
    context = orthrus.ModelPackageContext(str(write(root, components={"c": told}, layout="installed")))
    return context.select_component("c", orthrus.ModelPackageOptions(orthrus.SessionOptions()))


@pytest.mark.parametrize("key", ["session.optimized_model_filepath", "session.enable_profiling",
                                 "ep.context_trust", "ep.context_sign", "ep.context_enable", "orthrus.dump"])
def test_a_package_trusts_no_code_and_names_no_file_to_write(key: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be set in model package session options"):
        context_of(tmp_path, session_options={key: "1"}).create_session()


@pytest.mark.parametrize("key", ["module_path", "compiler_flags", "cache_folder", "backend_path"])
def test_a_package_names_no_code_for_a_provider(key: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be set in model package provider options"):
        context_of(tmp_path, provider_options={key: "x"}).create_session()


@pytest.mark.parametrize("key", ["session.model_external_initializers_file_folder_path",
                                 "ep.context_file_path"])
def test_a_package_reads_no_tensors_beside_it(key: str, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    for place in (str(tmp_path / "beside"), "../../../beside"):
        with pytest.raises(RuntimeError, match="leaves the package"):
            context_of(tmp_path / "package", session_options={key: place}).create_session()


def written(engine: Any, root: Path, asset: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What a package says that was made by every method, and its files."""
    with engine.ModelPackage() as made:
        made.set_metadata("name", "2", "words")
        made.set_component_inline("c", '{"variants": {}}')
        made.set_variant("c", "v", '{"ep": "CPUExecutionProvider"}')
        made.set_variant("c", "gone", "{}")
        made.remove_variant("c", "gone")
        made.set_variant_executor_info_inline("c", "v", "ort", json.dumps(INFO))
        made.set_variant_executor_info_inline("c", "v", "other", "{}")
        made.remove_variant_executor_info("c", "v", "other")
        made.set_additional_metadata_json("manifest", None, None, '{"a": [1]}')
        made.set_additional_metadata_json("component", "c", None, '{"b": 2}')
        uri = made.add_shared_asset(str(asset))
        made.commit(str(root))
        assert made.resolve_asset_uri(uri) == str(root / "shared_assets" / uri.replace(":", "-"))
        return made.get_info(), {str(f.relative_to(root)): f.read_text() for f in sorted(root.rglob("*.*"))
                                 if f.is_file()}


def test_a_package_is_written_as_onnxruntime_writes_it(tmp_path: Path) -> None:
    asset = tmp_path / "asset"
    (asset / "inner").mkdir(parents=True)
    (asset / "inner" / "words.txt").write_text("so")
    both = [written(engine, tmp_path / engine.__name__, asset) for engine in engines()]
    for info, files in both:
        for each in info["shared_assets"]:
            each["resolved_path"] = Path(each["resolved_path"]).name
        files["manifest.json"] = json.loads(files["manifest.json"])
    assert both[0] == both[-1]
    assert both[0][0]["shared_assets"][0]["uri"] == orthrus.ModelPackage.compute_directory_hash(str(asset))


def test_components_with_files_of_their_own(tmp_path: Path) -> None:
    root = write(tmp_path / "a", components={"decoder": "decoder"})
    body = {"variants": {"cpu": {"ep": "CPUExecutionProvider", "executor_info": {"ort": "info.json"}}}}
    (root / "decoder" / "component.json").write_text(json.dumps(body))
    (root / "decoder" / "cpu" / "info.json").write_text(json.dumps(INFO))
    context = orthrus.ModelPackageContext(str(root))
    found = context.select_component("decoder", orthrus.ModelPackageOptions(orthrus.SessionOptions()))
    assert found.create_session().get_session_options().intra_op_num_threads == 1
    with orthrus.ModelPackage.open(str(root)) as made:
        made.commit(str(tmp_path / "b"), orthrus.ModelPackageWriteMode.DENSE)
    told = json.loads((tmp_path / "b" / "manifest.json").read_text())["components"]["decoder"]
    assert told["variants"]["cpu"]["variant_directory"] == "decoder/cpu"
    again = orthrus.ModelPackageContext(str(tmp_path / "b"))
    found = again.select_component("decoder", orthrus.ModelPackageOptions(orthrus.SessionOptions()))
    assert found.create_session().run(None, {"x": np.ones(1, np.float32)})[0] == [-1]


def test_a_closed_package_says_so_and_refusals_change_nothing(package: Path) -> None:
    made = orthrus.ModelPackage.open(str(package))
    before = made.get_info()
    for name, text in (("x", "{"), ("decoder", "{}"), ("x", '{"variants": {"v": {"odd": 1}}}')):
        with pytest.raises(ValueError):
            made.set_component_inline(name, text)
    with pytest.raises(ValueError, match="layout"):
        made.set_layout("x")
    with pytest.raises(ValueError, match="scope"):
        made.set_additional_metadata_json("x", None, None, "1")
    assert made.get_info() == before
    made.close()
    with pytest.raises(ValueError, match="closed"):
        made.get_info()
    with pytest.raises(RuntimeError, match="no package_root"):
        orthrus.ModelPackage().commit()
