"""`orthrus serve` as a process: it starts, answers, and ends by a signal with its requests answered."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from served import adds, model, put
from skips import needs

pytestmark = needs("server libraries", "POSIX")
OPERATOR = """
import os, time, orthrus
@orthrus.op("served.test::Sleep")
def sleep(x):
    while not os.path.exists("awake"):
        time.sleep(0.01)
    return x.copy()
"""


def started(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], str]:
    program = "from orthrus.tools.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, "serve", "models", "--port", "0",
                                "--grpc-port", "0", *flags], stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return process, found[0]
    raise AssertionError(f"it ended with {process.wait()}")


def asked(url: str, name: str, values: list[float], shape: list[int]) -> list[float]:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": values}]})
    with urllib.request.urlopen(f"{url}/v2/models/{name}/infer", body.encode(), timeout=30) as answer:
        return json.load(answer)["outputs"][0]["data"]


def test_a_signal_ends_it_gracefully(tmp_path: Path) -> None:
    from onnx import helper

    (tmp_path / "sleeping.py").write_text(OPERATOR)
    put(tmp_path / "models", "sleeps", model([helper.make_node("Sleep", ["x"], ["y"], domain="served.test")],
                                             {"x": ("FP32", ["N"])}, {"y": ("FP32", ["N"])}))
    process, url = started(tmp_path, "--import", "sleeping", "--trace", "trace.json")
    answers = list[list[float]]()
    thread = threading.Thread(target=lambda: answers.append(asked(url, "sleeps", [1.0], [1])))
    thread.start()
    while "orthrus_requests_running{model=\"sleeps\",version=\"1\"} 1.0" not in urllib.request.urlopen(
            f"{url}/metrics").read().decode():
        assert thread.is_alive()
    process.send_signal(signal.SIGTERM)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        while True:
            urllib.request.urlopen(f"{url}/v2/health/ready").close()
    (tmp_path / "awake").touch()
    assert process.wait(60) == 0
    thread.join()
    assert answers == [[1.0]]
    assert "batch_run" in (tmp_path / "trace.json").read_text()


def test_requests_that_never_end_are_told_so(tmp_path: Path) -> None:
    from onnx import helper

    (tmp_path / "sleeping.py").write_text(OPERATOR)
    put(tmp_path / "models", "sleeps", model([helper.make_node("Sleep", ["x"], ["y"], domain="served.test")],
                                             {"x": ("FP32", ["N"])}, {"y": ("FP32", ["N"])}))
    process, url = started(tmp_path, "--import", "sleeping", "--drain", "0.3", "--max-connections", "2")
    outcomes = list[tuple[int, str]]()

    def ask() -> None:
        try:
            asked(url, "sleeps", [1.0], [1])
        except urllib.error.HTTPError as error:
            outcomes.append((error.code, json.load(error)["error"]))
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    while not outcomes:
        assert all(each.is_alive() for each in threads) or outcomes
    assert outcomes[0][0] == 503 and "2 requests are in" in outcomes[0][1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    for each in threads:
        each.join()
    assert outcomes[1:] == [(503, "the server ended before the request did")] * 2


def test_models_of_links_and_odd_names_are_not_served(tmp_path: Path) -> None:
    put(tmp_path / "models", "good", adds(1))
    put(tmp_path / "outside", "far", adds(1))
    put(tmp_path / "models", "odd name", adds(1))
    put(tmp_path / "models", ".hidden", adds(1))
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "outside" / "far")
    (tmp_path / "models" / "file.onnx").symlink_to(tmp_path / "outside" / "far" / "1" / "model.onnx")
    (tmp_path / "models" / "inner").mkdir()
    (tmp_path / "models" / "inner" / "1").symlink_to(tmp_path / "outside" / "far" / "1")
    process, url = started(tmp_path)
    try:
        request = urllib.request.Request(f"{url}/v2/repository/index", method="POST")
        index = json.load(urllib.request.urlopen(request))
        rows = {row["name"]: (row["state"], row["reason"]) for row in index}
        assert asked(url, "good", [1, 2, 3, 4], [1, 4]) == [2, 3, 4, 5]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert rows.pop("good")[0] == "READY" and len(rows) == 5
    assert {state for state, _ in rows.values()} == {"UNAVAILABLE"}
    for name in ("linked", "file", "inner"):
        assert "leads out" in rows[name][1]
    assert "characters" in rows["odd name"][1] and "characters" in rows[".hidden"][1]


@pytest.mark.parametrize("flags, says", [(("nowhere",), "no folder"),
                                         (("models", "--host", "256.0.0.1"), "can't listen")])
def test_what_can_not_be_served_is_said(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    (tmp_path / "models").mkdir()
    program = "from orthrus.tools.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "serve", *flags, "--port", "0", "--grpc-port", "0"],
                          capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
