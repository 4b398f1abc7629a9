"""Programs and command lines written for SpacemiT's own provider."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
from skips import needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus.demo import MODEL, samples
from orthrus.tools.cli.main import app

NAME = "SpaceMITExecutionProvider"
runs = needs("SpaceMIT")
elsewhere = needs("no board")

PROGRAM = """
import json, sys
import numpy as np
import orthrus as ort
before = ort.get_available_providers()
devices = [d.ep_name for d in ort.get_ep_devices()]
import spacemit_ort
after = ort.get_available_providers()
options = {"shared_lib_path": spacemit_ort.EPLibPath,
           "provider_factory_entry_point": spacemit_ort.kExecutionProviderSharedLibraryEntry,
           "SPACEMIT_EP_INTRA_THREAD_NUM": "1"}
session = ort.InferenceSession(sys.argv[1], providers=[spacemit_ort.kSpaceMITExecutionProvider],
                               provider_options=[options])
image = np.load(sys.argv[2])
print(json.dumps([before, devices, after, session.get_providers(), session.explain().providers,
                  session.get_provider_options()[session.get_providers()[0]]["SPACEMIT_EP_INTRA_THREAD_NUM"],
                  session.run(["label"], {"image": image})[0].tolist()]))
"""


@runs
@elsewhere
def test_importing_the_module_lists_the_provider(tmp_path: Path) -> None:
    images, labels = samples()
    np.save(tmp_path / "image.npy", images[:3])
    given = [str(MODEL), str(tmp_path / "image.npy")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM, *given], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    before, devices, after, used, placed, threads, found = json.loads(done.stdout)
    assert NAME not in before and NAME not in devices and before[-1] == "CPUExecutionProvider"
    assert NAME in after[:-1] and [name for name in after if name != NAME] == before
    assert used == [NAME, "CPUExecutionProvider"] and placed[NAME] > 1 and threads == "1"
    assert found == labels[:3].tolist()


@runs
def test_a_provider_that_is_not_listed_works_where_it_is_asked_for(recwarn: pytest.WarningsRecorder) -> None:
    session = ort.InferenceSession(graphs.add(), providers=[NAME])
    assert session.get_providers() == [NAME, "CPUExecutionProvider"] and not recwarn.list
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": a})[0], a + a)


@runs
def test_the_documented_perf_test(tmp_path: Path) -> None:
    """./bin/onnxruntime_perf_test ${model} -e spacemit -r 10 -x 1 -S 1 -s -c 1 -i "..." -I"""
    onnx.save(graphs.add(), tmp_path / "model.onnx")
    found = CliRunner().invoke(app, [
        "perf-test", str(tmp_path / "model.onnx"), "-e", "spacemit", "-r", "10", "-x", "1", "-S", "1", "-s",
        "-c", "1", "-i", "SPACEMIT_EP_INTRA_THREAD_NUM|1", "-I"])
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[:2] == [f"using {NAME}", "setting SPACEMIT_EP_INTRA_THREAD_NUM : 1"]
    assert any(line.startswith("Average inference time cost total: ") for line in lines)
    assert "Total inference requests: 10" in lines
    assert f"1 on {NAME}" in found.stderr


@runs
def test_the_documented_test_runner(tmp_path: Path) -> None:
    """onnx_test_runner <dir> -j 1 -X 4 -e spacemit"""
    folder = tmp_path / "add" / "test_data0"
    folder.mkdir(parents=True)
    onnx.save(graphs.add(), tmp_path / "add" / "model.onnx")
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, array in (("input0", a), ("input1", a), ("output0", a + a)):
        (folder / f"{name}.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    found = CliRunner().invoke(app, ["test-runner", str(tmp_path), "-j", "1", "-X", "4", "-e", "spacemit"])
    assert found.exit_code == 0, found.output
    assert "Succeeded: 1" in found.stdout
