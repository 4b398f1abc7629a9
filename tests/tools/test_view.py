"""`orthrus view`: the data it collects, the page it writes, and the page in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from skips import BROWSERS, MODELS, needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus.demo import MODEL
from orthrus.ir import Graph, Node
from orthrus.load import load
from orthrus.tools.cli.main import app
from orthrus.tools.view import view
from orthrus.tools.view.data import Distance, ViewData, collect
from orthrus.tools.view.groups import LIMIT, Scope, grouped
from orthrus.tools.view.page import SCRIPTS, STYLES
from orthrus.tools.view.page import page as page_of

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>&\u2028\"'"


def session(model: Any, **more: Any) -> Any:
    data = model if isinstance(model, str | Path) else model.SerializeToString()
    return ort.InferenceSession(data, **more)


def plain_session(model: Any) -> Any:
    """A session whose graph is the model's own."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return session(model, sess_options=options)


def named_chain(names: list[str], op: str = "Relu",
                metadata: dict[str, str] | None = None) -> onnx.ModelProto:
    made = graphs.chain(len(names), op)
    for node, name in zip(made.graph.node, names, strict=True):
        node.name = name
        if metadata and name in metadata:
            entry = node.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", metadata[name]
    return made


def transformer(layers: int) -> onnx.ModelProto:
    """Layers of 14 nodes with a residual path, named as PyTorch's exporter names them."""
    nodes, current = [], "x"

    def add(op: str, name: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, list(inputs), [name + "_out"], name=name))
        return name + "_out"

    for i in range(layers):
        at = f"/model/layers.{i}"
        norm = add("Tanh", f"{at}/norm/Tanh", current)
        heads = [add("Sigmoid", f"{at}/attn/head.{h}/Sigmoid",
                     add("Softplus", f"{at}/attn/head.{h}/q/Softplus", norm)) for h in range(4)]
        joined = add("Sum", f"{at}/attn/Sum", *heads)
        middle = add("Add", f"{at}/Add", current, joined)
        up = add("Erf", f"{at}/mlp/up/Erf", middle)
        current = add("Add", f"{at}/Add_1", middle, add("Sin", f"{at}/mlp/down/Sin", up))
    return graphs.model(nodes, ["x"], [current])


def long_flat(count: int) -> onnx.ModelProto:
    """Nodes without scopes in their names; a third of them read something up to 30 nodes back."""
    rng, names, nodes = np.random.default_rng(0), ["x"], []
    for i in range(count):
        inputs = [names[-1]]
        if i % 3 == 0:
            inputs.append(names[max(0, len(names) - int(rng.integers(2, 30)))])
        nodes.append(helper.make_node("Add" if len(inputs) > 1 else "Relu", inputs, [f"v{i}"], name=f"n{i}"))
        names.append(f"v{i}")
    return graphs.model(nodes, ["x"], [names[-1]])


def graph_of(model: onnx.ModelProto) -> Graph:
    return load(model.SerializeToString())


def flattened(children: list[Scope | Node]) -> list[Node]:
    return [n for c in children for n in ([c] if isinstance(c, Node) else c.nodes())]


def boxes(children: list[Scope | Node]) -> Iterator[list[Scope | Node]]:
    yield children
    for child in children:
        if isinstance(child, Scope):
            yield from boxes(child.children)


def titles(children: list[Scope | Node]) -> Any:
    """Scopes as {title: inner}, nodes as their labels."""
    return [c.label if isinstance(c, Node) else {c.title: titles(c.children)} for c in children]


# groups


def test_a_small_graph_stays_flat() -> None:
    graph = graph_of(named_chain([f"/a/b/n{i}" for i in range(10)]))
    assert grouped(graph) == graph.nodes


def test_scopes_come_from_names() -> None:
    names = [f"/m/{part}/n{i}" for part in ("enc", "dec") for i in range(15)]
    found = grouped(graph_of(named_chain(names)))
    assert [c.title for c in found if isinstance(c, Scope)] == ["enc", "dec"]
    assert titles(found)[1]["dec"][0] == "/m/dec/n0"


def test_small_scopes_dissolve_and_chains_of_scopes_join() -> None:
    names = [*(f"/a/b/c/n{i}" for i in range(12)), *(f"/d/pair/n{i}" for i in range(2)),
             *(f"/d/n{i}" for i in range(14))]
    found = titles(grouped(graph_of(named_chain(names))))
    assert list(found[0]) == ["a/b/c"]
    assert found[1]["d"][:3] == ["/d/pair/n0", "/d/pair/n1", "/d/n0"]


def test_scopes_come_from_an_exporters_metadata_and_new_nodes_stand_with_their_neighbours() -> None:
    names = [f"node_{i}" for i in range(40)]
    told = {name: repr(["", "m", f"m.layers.{i // 20}", f"m.layers.{i // 20}.x{i}", "relu"])
            for i, name in enumerate(names) if i != 7}
    told["node_9"] = "not a list ["
    found = grouped(graph_of(named_chain(names, metadata=told)))
    assert [c.title for c in found if isinstance(c, Scope)] == ["layers.0", "layers.1"]
    inner = found[0]
    assert isinstance(inner, Scope) and [n.label for n in inner.nodes()] == names[:20]


@pytest.mark.parametrize("count", [LIMIT, LIMIT + 1, 1000, 20_000])
def test_no_box_has_too_many_children_and_every_node_is_in_one(count: int) -> None:
    graph = graph_of(long_flat(count))
    found = grouped(graph)
    assert flattened(found) == graph.nodes
    assert max(len(box) for box in boxes(found)) <= LIMIT


def test_blocks_end_where_few_values_cross() -> None:
    """Stretches of 20 nodes, all of which read the stretch's first value: one value crosses between them."""
    nodes, current = [helper.make_node("Relu", ["x"], ["stem"], name="stem")], "stem"
    for i in range(10):
        first = current
        for j in range(20):
            nodes.append(helper.make_node("Add", [current, first], [f"v{i}_{j}"], name=f"n{i}_{j}"))
            current = f"v{i}_{j}"
    found = grouped(graph_of(graphs.model(nodes, ["x"], [current])))
    ends = [child.children[-1] for child in found if isinstance(child, Scope)]
    assert all(isinstance(end, Node) and end.label.endswith("_19") for end in ends)


def test_scopes_end_at_some_depth() -> None:
    names = ["/".join(["", *"abcdefghij" * 500, f"n{i}"]) for i in range(30)]
    found = grouped(graph_of(named_chain(names)))
    assert [n.label for n in flattened(found)] == names


# data


@pytest.fixture(scope="module")
def digits() -> ViewData:
    it = session(MODEL)
    return collect(it, "digits.onnx", view.profiled(it, {"image": np.zeros((2, 1, 8, 8), np.float32)}, 2))


def test_every_node_and_edge_of_the_graph_is_there(digits: ViewData) -> None:
    graph = session(MODEL)._sess._engine.graph
    nodes = [n for n in digits.nodes if n.kind == "node"]
    assert [(n.name, n.op, n.version) for n in nodes] == [
        (n.label, n.op_type, n.version) for n in graph.nodes]
    edges = {(digits.nodes[a].name, digits.nodes[b].name, digits.values[v].name) for a, b, v in digits.edges}
    expected = {(v.node.label, n.label, v.name) for n in graph.nodes for v in n.inputs if v and v.node}
    expected |= {(v.name, n.label, v.name) for v in graph.inputs for n in v.uses}
    expected |= {(v.node.label, v.name, v.name) for v in graph.outputs if v.node}
    assert edges == expected


def test_nodes_tell_their_placement_types_and_attributes(digits: ViewData) -> None:
    conv = next(n for n in digits.nodes if n.op == "Conv")
    assert conv.provider == "CPUExecutionProvider" and conv.kernel.startswith("generated") and conv.part
    assert ("pads", "[1, 1, 1, 1]") in conv.attributes
    weight = digits.values[conv.inputs[1]]
    assert weight.kind == "constant" and weight.type.startswith("float[") and not weight.text


def test_a_run_gives_times_operations_and_memory(digits: ViewData) -> None:
    ran = [n.measured for n in digits.nodes if n.measured]
    assert digits.runs == 2 and len(ran) >= 3
    assert all(m.seconds > 0 and m.kernel for m in ran) and sum(m.flop for m in ran) > 0
    part = digits.parts[0]
    assert part.memory and part.steps and part.arena >= max(r.offset + r.bytes for r in part.memory)
    assert all(0 <= r.first <= r.last for r in part.memory)
    assert digits.peak["flops"] > 0


def test_nodes_tell_what_of_the_file_they_stand_for() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["s"], name="square"),
             helper.make_node("ReduceMean", ["s"], ["m"], name="mean", axes=[-1]),
             helper.make_node("Add", ["m", "e"], ["v"], name="plus"),
             helper.make_node("Sqrt", ["v"], ["r"], name="root"),
             helper.make_node("Div", ["x", "r"], ["n"], name="by"),
             helper.make_node("Mul", ["n", "w"], ["y"], name="times"),
             helper.make_node("Relu", ["y"], ["z"], name="last")]
    constants = [numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
                 for name, shape in (("e", ()), ("w", 4))]
    x, z = (helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xz")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [z], constants), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17)])
    data = collect(session(model), "norm", None, None, load(model))
    found = {node.op: node.origin for node in data.nodes if node.kind == "node"}
    assert found["Relu"] == ()
    (fused,) = (origin for op, origin in found.items() if op != "Relu")
    assert {name for _, name in fused} == {"square", "mean", "plus", "root", "by", "times"}
    assert data.file is not None
    assert [n.op for n in data.file.nodes if n.kind == "node"] == [n.op_type for n in nodes]
    assert '"origin":[["Mul","times"]' in page_of(data)


def test_without_a_run_nothing_is_measured_and_the_page_is_always_the_same() -> None:
    data = collect(session(MODEL), "digits.onnx")
    assert not any(n.measured for n in data.nodes) and data.seconds is None
    assert page_of(data) == page_of(collect(session(MODEL), "digits.onnx"))


def test_refusals_are_told() -> None:
    it = session(MODEL, providers=["NullExecutionProvider"])
    data = collect(it, "digits.onnx")
    assert {n.provider for n in data.nodes if n.kind == "node"} == {"NullExecutionProvider"}
    text = graphs.model([helper.make_node("StringNormalizer", ["s"], ["t"])],
                        [graphs.info("s", TensorProto.STRING, [2])],
                        [graphs.info("t", TensorProto.STRING, [None])])
    node = next(n for n in collect(session(text), "text").nodes if n.kind == "node")
    assert node.reasons and all(who and why for who, why in node.reasons)


def test_nodes_of_one_name_keep_their_own_reports() -> None:
    model = graphs.model([helper.make_node(op, [a], [b], name="twin") for op, a, b in
                          (("Relu", "x", "y"), ("NonZero", "y", "z"), ("Relu", "y", "w"))],
                         ["x"], [graphs.info("z", TensorProto.INT64, [2, None]), "w"])
    data = collect(plain_session(model), "twins")
    assert [n.op for n in data.nodes if n.kind == "node"] == ["Relu", "NonZero", "Relu"]
    assert all(n.kernel for n in data.nodes if n.kind == "node")


def branching() -> onnx.ModelProto:
    """y = Loop(If(flag, x + x, -x)); the branches read x of the outer graph."""
    def body(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [graphs.info(node.output[0])])

    inner = helper.make_node(
        "If", ["flag"], ["i"], name="choice",
        then_branch=body("yes", helper.make_node("Add", ["x", "x"], ["a"], name="twice")),
        else_branch=body("no", helper.make_node("Neg", ["x"], ["b"], name="minus")))
    loop_body = helper.make_graph(
        [inner, helper.make_node("Identity", ["go"], ["go_on"], name="same")], "turn",
        [graphs.info("n", TensorProto.INT64, []), graphs.info("go", TensorProto.BOOL, []),
         graphs.info("carried")],
        [graphs.info("go_on", TensorProto.BOOL, []), graphs.info("i")])
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], name="turns", body=loop_body)
    return graphs.model([loop], ["x", graphs.info("flag", TensorProto.BOOL, []),
                                 graphs.info("count", TensorProto.INT64, [])], ["y"])


def test_bodies_of_control_flow_are_boxes_with_edges_into_them() -> None:
    data = collect(plain_session(branching()), "loop")
    kinds = [(g.title, g.kind) for g in data.groups]
    assert kinds == [("Loop turns", "control"), ("If choice", "control"), ("else_branch", "body"),
                     ("then_branch", "body")]
    by_name = {n.name: n for n in data.nodes if n.kind == "node"}
    assert data.groups[by_name["twice"].group].title == "then_branch"
    assert by_name["turns"].body == by_name["turns"].group == 0 and data.groups[1].parent == 0
    ends = {(data.nodes[a].name, data.nodes[b].name) for a, b, _ in data.edges}
    assert {("x", "twice"), ("x", "minus"), ("flag", "choice"), ("x", "turns"), ("go", "same")} <= ends
    assert by_name["turns"].inputs[1] == -1


def test_many_inputs_share_a_box() -> None:
    names = [f"x{i}" for i in range(40)]
    data = collect(session(graphs.model([helper.make_node("Sum", names, ["y"])], names, ["y"])), "sum")
    assert [(g.title, g.kind) for g in data.groups] == [("40 inputs", "border")]
    assert sum(n.kind == "input" and n.group == 0 for n in data.nodes) == 40


def test_distances_come_to_the_nodes_that_make_the_values() -> None:
    model = named_chain(["first", "second"], "Sin")
    far = Distance(1e-3, 10.0, None)
    data = collect(plain_session(model), "chain", None, {"v1": far, "v2": Distance(0.0, 0.0, None)})
    assert data.checked
    assert [n.distance for n in data.nodes if n.kind == "node"] == [far, Distance(0.0, 0.0, None)]


def test_a_models_values_are_compared_with_their_definitions(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(named_chain(["first", "second"], "Sin"), path)
    found = view.distances(path, "CPUExecutionProvider", {"v0": np.ones((2, 3), np.float32)}, "all", 0)
    assert {"v1", "v2"} <= set(found)
    assert all(d.largest is not None and d.excess is not None and d.excess <= 1 for d in found.values())


# page


def scripts_of(page: str) -> list[str]:
    return re.findall(r'<script id="[\w.-]+">(.*?)</script>', page, re.DOTALL)


def policy_of(page: str) -> str:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    return html.unescape(found[1])


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_admits_the_pages_own_scripts_only(digits: ViewData) -> None:
    page = page_of(digits)
    scripts, policy = scripts_of(page), policy_of(page)
    assert len(scripts) == len(SCRIPTS)
    assert "default-src 'none'" in policy and "unsafe" not in policy
    admitted = re.findall(r"'sha256-[^']*'", policy.split("script-src")[1].split(";")[0])
    assert admitted == [digest(script) for script in scripts]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None and digest(style[1]) in policy.split("style-src")[1].split(";")[0]


def test_the_page_asks_for_no_other_file(digits: ViewData) -> None:
    page = page_of(digits)
    assert not re.search(r"""<(link|iframe|img|object|embed)\b|@import|url\(|sourceMappingURL|\bsrc=""", page)
    own = [(path.name, path.read_text("utf-8")) for path in (Path(view.__file__).parent / "assets").iterdir()
           if path.name.startswith("view")]
    banned = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|fetch\(|XMLHttp|https?:"
    assert own and not [name for name, text in own if re.search(banned, text)]


def evil() -> onnx.ModelProto:
    model = graphs.model([helper.make_node("Relu", [EVIL], ["y"], name=EVIL)], [EVIL], ["y"])
    model.graph.name = model.producer_name = EVIL
    return model


def test_names_from_the_model_do_not_leave_the_data() -> None:
    page = page_of(collect(session(evil()), EVIL))
    assert "<img" not in page and page.count("onerror='") == page.count("\\u003cimg src=x onerror='") > 0
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["model"] == EVIL and any(n.get("name") == EVIL and n["kind"] == "node" for n in data["nodes"])
    assert page.count("<script") == len(SCRIPTS) + 1


def test_what_is_shipped_is_small_and_licensed() -> None:
    folder = Path(view.__file__).parent / "assets"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_500_000
    for library in ("dagre", "uplot"):
        assert "Permission is hereby granted" in (folder / f"{library}.LICENSE.txt").read_text()
    for name in (*SCRIPTS, *STYLES, "view.html"):
        text = (folder / name).read_text("utf-8")
        assert name in (folder / "README.md").read_text() and "</script" not in text or name == "view.html"


# command


def invoke(*args: object) -> Any:
    return CliRunner().invoke(app, ["view", *map(str, args)])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data_of(path: str | Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', Path(path).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_command_writes_a_page_beside_itself(tmp_path: Path) -> None:
    shutil.copy(MODEL, "digits.onnx")
    found = invoke("digits.onnx", "-n", 2, "--shape", "image=3,1,8,8", "--check")
    assert found.exit_code == 0 and found.output.strip().endswith("wrote digits.html")
    data = data_of("digits.html")
    assert data["runs"] == 2 and data["checked"] and data["model"] == "digits.onnx"
    types = [t for n in data["nodes"] if "measured" in n for t in n["measured"]["outputs"]]
    assert any(t.startswith("float[3,") for t in types)
    assert any(n.get("distance") for n in data["nodes"])


def test_no_run_leaves_out_what_needs_one(tmp_path: Path) -> None:
    found = invoke(MODEL, "--no-run", "-o", "page.html", "--level", "disable")
    assert found.exit_code == 0
    data = data_of("page.html")
    assert data["runs"] == 0 and not any("measured" in n for n in data["nodes"])


@pytest.mark.parametrize("args, says", [
    ([MODEL, "--check", "--no-run"], "--check needs a run"),
    (["nothing.onnx"], "nothing.onnx"),
    ([MODEL, "--shape", "image=1,1,9,9"], "does not fit"),
    ([MODEL, "--no-run", "-o", "no/such/folder/x.html"], "no/such/folder"),
])
def test_what_is_wrong_is_said(args: list[Any], says: str) -> None:
    found = invoke(*args)
    assert found.exit_code == 1 and says in found.output.replace("\n", " ")
    assert "Traceback" not in found.output


# browser


NAMES = sorted(p.parent.name for p in MODELS.glob("*/model.onnx"))


@pytest.mark.slow
@needs("models")
@pytest.mark.parametrize("name", NAMES)
def test_trained_models_are_shown_whole(name: str) -> None:
    it = session(str(MODELS / name / "model.onnx"))
    data = collect(it, name)
    nodes = [n for n in data.nodes if n.kind == "node"]
    assert sorted(n.name for n in nodes) == sorted(n.label for n in it._sess._engine.graph.walk())
    assert all(n.provider and n.kernel for n in nodes)
    children = [n.group for n in data.nodes] + [g.parent for g in data.groups]
    assert max(map(children.count, set(children))) <= 2 * LIMIT
    assert len(page_of(data)) < 3_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = next(filter(None, map(shutil.which, BROWSERS)))
    driver = shutil.which("chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--hide-scrollbars", "--window-size=1440,1000", "--force-device-scale-factor=1"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    it = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield it
    it.quit()


def opened(browser: Any, path: Path) -> None:
    """Load a page and wait until its graph is drawn; it must log nothing and ask for nothing but itself."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.resolve().as_uri())
    browser.execute_async_script("orthrusView.ready.then(arguments[0])")
    quiet(browser, path)


def quiet(browser: Any, path: Path) -> None:
    assert browser.get_log("browser") == []
    asked = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("blob:")] in ([], [path.resolve().as_uri()])


def written(model: Any, name: str, run: dict[str, Any] | None = None) -> Path:
    it = session(model)
    path = Path(f"{name}.html")
    profile = None if run is None else view.profiled(it, run, 2)
    path.write_text(page_of(collect(it, f"{name}.onnx", profile)), encoding="utf-8")
    return path


def click_item(browser: Any, index: int) -> None:
    """A click of the pointer in the middle of a node on the canvas."""
    from selenium.webdriver.common.action_chains import ActionChains

    x, y = browser.execute_script("""
        const {x, y, w, h} = orthrusView.tree.items[arguments[0]], v = orthrusView.painter.view;
        return [v.x + (x + w / 2) * v.k, v.y + (y + h / 2) * v.k]""", index)
    canvas = browser.find_element("id", "canvas")
    ActionChains(browser).move_to_element_with_offset(
        canvas, round(x - canvas.size["width"] / 2), round(y - canvas.size["height"] / 2)).click().perform()


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_search_finds_and_a_click_opens_a_node(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    path = written(MODEL, "digits", {"image": np.zeros((1, 1, 8, 8), np.float32)})
    opened(browser, path)
    panel = browser.find_element("id", "panel")
    assert "digits.onnx" in panel.text
    browser.find_element("tag name", "body").send_keys("/")
    search = browser.switch_to.active_element
    assert search.get_attribute("id") == "search"
    search.send_keys("gemm")
    assert "Gemm" in browser.find_element("id", "found").text
    search.send_keys(Keys.ENTER)
    browser.execute_async_script("setTimeout(arguments[0], 100)")
    assert panel.text.startswith("×\nGemm") or "Gemm" in panel.find_element("tag name", "h2").text
    search.send_keys(Keys.ESCAPE)
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert panel.find_element("tag name", "h2").text == "digits.onnx"
    index = browser.execute_script("return orthrusView.data.nodes.findIndex((n) => n.op === 'Conv')")
    browser.find_element("id", "fit").click()
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    click_item(browser, index)
    assert panel.find_element("tag name", "h2").text == "Conv"
    for says in ("CPUExecutionProvider", "pads", "OF THE RUN", "float["):
        assert says.lower() in panel.text.lower()
    quiet(browser, path)


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_nothing_lies_over_the_graph_and_the_file_is_shown_too(browser: Any) -> None:
    it, file = session(MODEL), load(MODEL)
    profile = view.profiled(it, {"image": np.zeros((2, 1, 8, 8), np.float32)}, 2)
    path = Path("both.html")
    path.write_text(page_of(collect(it, "both.onnx", profile, None, file, 1.5)), encoding="utf-8")
    for width in (2560, 1440, 1024, 500):
        browser.set_window_size(width, 900)
        opened(browser, path)
        assert "measured beside other work" in browser.find_element("id", "summary").text
        assert browser.find_element("css selector", "[aria-checked=true][data-colour]").text == "Time"
        over = browser.execute_script("""
            const box = (name) => document.querySelector(name).getBoundingClientRect(), at = box("#canvas");
            return [".tools", "#legend", "#map", "#panel"].filter((name) => {
              const it = box(name);
              return it.left < at.right - 1 && it.right > at.left + 1 && it.top < at.bottom - 1
                && it.bottom > at.top + 1;
            }).concat(at.width > 200 && at.height > 150 ? [] : ["no room"])""")
        assert over == [], (width, over)
    browser.find_element("css selector", "[data-graph=file]").click()
    browser.execute_async_script(
        "const done = arguments[0], ask = () => window.orthrusView?.data.nodes.every((n) => !n.provider) "
        "? orthrusView.ready.then(done) : setTimeout(ask, 20); ask()")
    nodes = browser.execute_script("return orthrusView.data.nodes.filter((n) => n.kind === 'node').length")
    assert nodes == sum(1 for _ in file.walk())
    browser.set_window_size(1440, 1000)


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_every_tab_draws(browser: Any) -> None:
    path = written(MODEL, "tabs", {"image": np.zeros((1, 1, 8, 8), np.float32)})
    opened(browser, path)
    for name in ("timeline", "memory", "roofline"):
        browser.find_element("id", f"tab-{name}").click()
        inked = browser.execute_script("""
            const canvas = document.querySelector(`#view-${arguments[0]} canvas`), {width, height} = canvas;
            const {data} = canvas.getContext("2d").getImageData(0, 0, width, height), seen = new Set();
            for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
            return seen.size""", name)
        assert inked > 8, name
    browser.find_element("id", "tab-nodes").click()
    assert len(browser.find_elements("css selector", "#view-nodes tbody tr")) == len(
        [n for n in collect(session(MODEL), "").nodes if n.kind == "node"])
    browser.find_element("id", "theme").click()
    quiet(browser, path)


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_names_from_the_model_are_text(browser: Any) -> None:
    path = written(evil(), "evil")
    opened(browser, path)
    browser.execute_script(
        "orthrusView.choose(orthrusView.tree.items.find((item) => item.node.kind === 'node'), true)")
    assert browser.find_element("css selector", "#panel .path").text.startswith("</script>")
    assert browser.execute_script("return window.evil") is None
    quiet(browser, path)


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_without_a_run_the_tabs_say_so(browser: Any) -> None:
    opened(browser, written(branching(), "loop"))
    for name in ("timeline", "roofline"):
        browser.find_element("id", f"tab-{name}").click()
        assert "without a run" in browser.find_element("id", f"view-{name}").text
    browser.find_element("id", "tab-graph").click()
    browser.execute_async_script("orthrusView.all(true).then(arguments[0])")
    showing = browser.execute_script(
        "return [...orthrusView.tree.visible()].filter((i) => !i.children).map((i) => i.node.name)")
    assert {"twice", "minus", "same"} <= set(showing)


@pytest.mark.slow
@needs("browser")
def test_in_a_browser_lines_and_their_shapes_are_hidden_by_no_box(browser: Any) -> None:
    """A line that goes past boxes keeps clear of them, and the shapes lie beside it and each other."""
    nodes = [helper.make_node("Relu", ["x"], ["h0"], name="first")]
    nodes += [helper.make_node("Sin", [f"h{i}"], [f"h{i + 1}"], name=f"a_long_name_of_a_node_{i}")
              for i in range(3)]
    nodes += [helper.make_node("Sum", ["h0", "h1", "h3", "x"], ["y"], name="last"),
              helper.make_node("Split", ["z"], ["left", "right"], name="split", axis=1, num_outputs=2),
              helper.make_node("Sigmoid", ["right"], ["gate"], name="gate"),
              helper.make_node("Mul", ["left", "gate"], ["gated"], name="gated")]
    x = graphs.info("x", TensorProto.FLOAT, ["batch_of_many", "sequence_length", 128])
    z = graphs.info("z", TensorProto.FLOAT, ["batch", 32, "time"])
    opened(browser, written(graphs.model(nodes, [x, z], ["y", "gated"]), "past"))
    browser.execute_async_script("orthrusView.all(true).then(arguments[0])")
    count, hidden = browser.execute_script("""
        const {painter: p, tree} = orthrusView, c = p.context, hidden = [];
        const items = [...tree.visible()].filter((i) => !i.children);
        const over = (x, y, w, h, what) => items.forEach((i) => {
          const across = x < i.x + i.w - 1 && x + w > i.x + 1, along = y < i.y + i.h - 1 && y + h > i.y + 1;
          if (across && along) hidden.push([what, i.node.name]);
        });
        let count = 0, within = false;
        const {label, text, trace} = p, {quadraticCurveTo: curve, lineTo: line} = c;
        p.label = function(...g) { within = true; label.apply(this, g); within = false; };
        p.text = function(t, x, y, ...g) {
          if (within) {
            count += 1;
            over(x, y - 5, c.measureText(t).width, 10, t);
            items.push({x, y: y - 5, w: c.measureText(t).width, h: 10, node: {name: "a label"}});
          }
          return text.call(this, t, x, y, ...g);
        };
        p.trace = function(l) {
          let at = l.points[0];
          c.lineTo = function(x, y) {
            const [u, v] = at;
            for (let t = 0; t <= 1; t += .1) over(u + (x - u) * t, v + (y - v) * t, 0, 0, "line");
            at = [x, y];
            line.call(c, x, y);
          };
          c.quadraticCurveTo = function(a, b, x, y) {
            over(at[0] / 4 + a / 2 + x / 4, at[1] / 4 + b / 2 + y / 4, 0, 0, "curve");
            at = [x, y];
            curve.call(c, a, b, x, y);
          };
          trace.call(this, l);
          delete c.lineTo, delete c.quadraticCurveTo;
        };
        p.view.k = 1;
        p.draw();
        delete p.label, delete p.text, delete p.trace;
        return [count, hidden]""")
    assert count > 3 and hidden == []


@pytest.mark.slow
@needs("browser")
@pytest.mark.parametrize("make", [lambda: long_flat(4000), lambda: transformer(300)],
                         ids=["flat", "transformer"])
def test_in_a_browser_four_thousand_nodes_stay_fluid(browser: Any, make: Any) -> None:
    """Nothing overlaps, and a frame draws no more than what is in sight."""
    model = make()
    it = plain_session(model)
    path = Path("big.html")
    path.write_text(page_of(collect(it, "big.onnx")), encoding="utf-8")
    browser.set_script_timeout(120)
    opened(browser, path)
    browser.execute_async_script("orthrusView.all(true).then(arguments[0])")
    count, overlapping = browser.execute_script("""
        const {tree} = orthrusView, found = [];
        const check = (box) => {
          const all = box.children;
          for (let i = 0; i < all.length; i++) {
            const a = all[i];
            const right = box.x + box.w + .5, bottom = box.y + box.h + .5;
            if (a.x < box.x - .5 || a.x + a.w > right) found.push([i, "beside"]);
            if (a.y < box.y - .5 || a.y + a.h > bottom) found.push([i, "above"]);
            for (let j = 0; j < i; j++) {
              const b = all[j];
              const across = a.x < b.x + b.w && b.x < a.x + a.w, along = a.y < b.y + b.h && b.y < a.y + a.h;
              if (across && along) found.push([i, j]);
            }
            if (a.open) check(a);
          }
        };
        check(tree.root);
        return [[...tree.visible()].filter((item) => !item.children).length, found]""")
    assert count == len(model.graph.node) + 2 and overlapping == []
    drawn, moved = browser.execute_async_script("""
        const done = arguments[0], p = orthrusView.painter, drawn = [];
        let calls = 0;
        for (const name of ["fill", "stroke", "fillRect", "strokeRect", "fillText"]) {
          const draws = p.context[name];
          p.context[name] = function(...given) { calls += 1; return draws.apply(this, given); };
        }
        p.view.k = 0.2;
        p.view.y = 64 - orthrusView.tree.root.h * 0.06;
        const before = p.view.y, step = () => {
          p.pan(0, -9);
          calls = 0;
          p.draw();
          drawn.push(calls);
          if (drawn.length < 40) requestAnimationFrame(step);
          else done([Math.max(...drawn), before - p.view.y]);
        };
        step();""")
    assert moved == pytest.approx(360) and 0 < drawn < 1000
    quiet(browser, path)


SHOTS = Path(__file__).parents[2] / "docs"
"""Where the documentation's pictures are."""


def shot(browser: Any, name: str) -> None:
    browser.execute_async_script("setTimeout(arguments[0], 300)")
    browser.save_screenshot(str(SHOTS / f"{name}.png"))
    assert (SHOTS / f"{name}.png").stat().st_size < 300_000


@needs("browser", "VIEW_SHOTS")
def test_draw_the_pictures_of_the_documentation(browser: Any) -> None:
    opened(browser, written(MODEL, "digits", {"image": np.zeros((64, 1, 8, 8), np.float32)}))
    choose = """
        const {data, tree, choose} = orthrusView, best = data.nodes.reduce((a, b) =>
          (b.measured && (!a || b.measured.seconds > a.measured.seconds) ? b : a), null);
        document.querySelector(`[data-colour=${arguments[0]}]`).click();
        return choose(tree.items[data.nodes.indexOf(best)], arguments[1])"""
    browser.find_element("id", "theme").click()
    browser.execute_script(choose, "operator", False)
    shot(browser, "view-digits")
    opened(browser, Path(os.environ["VIEW_SHOTS"]))
    browser.execute_script(choose, "time", True)
    shot(browser, "view-graph")
    for name in ("timeline", "memory", "roofline"):
        browser.find_element("id", f"tab-{name}").click()
        if name == "timeline":
            browser.execute_script("""
                const rows = document.querySelector("#view-timeline select");
                rows.value = "kernel";
                rows.dispatchEvent(new Event("change"))""")
        shot(browser, f"view-{name}")
