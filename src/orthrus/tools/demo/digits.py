"""The digits that come with the package: classified, and shown with where that ran and how long it took.

In: a provider list and how many digits to draw. Out: `Outcome`, and its printed form.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from ...demo import MODEL, samples
from ...records import dataclass
from ...run.explain import Explanation

SHADES, PLAIN_SHADES = " ░▒▓█", " .:%@"
"""From dark to light, and what stands for them where an encoding has none."""
TIMED_RUNS = 50


@dataclass(frozen=True)
class Outcome:
    """What the demo found; times in seconds."""

    images: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray
    create: float
    one_image: float
    per_image_in_batch: float
    report: Explanation

    @property
    def accuracy(self) -> float:
        return float((self.predictions == self.labels).mean())

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"images": len(self.labels), "accuracy": self.accuracy, "create_seconds": self.create,
                "seconds_per_image": self.one_image, "seconds_per_image_in_batch": self.per_image_in_batch,
                "providers": self.report.providers}


def classify(providers: Sequence[Any]) -> Outcome:
    """Make a session of the shipped model, classify all samples at once and one by one."""
    import orthrus as ort

    images, labels = samples()
    start = time.perf_counter()
    session = ort.InferenceSession(MODEL, providers=list(providers))
    create = time.perf_counter() - start
    predictions, probabilities = session.run(["label", "probability"], {"image": images})
    batch = _median(lambda: session.run(None, {"image": images}), 5) / len(images)
    single = {"image": images[:1]}
    one = _median(lambda: session.run(None, single), TIMED_RUNS)
    return Outcome(images, labels, np.asarray(predictions), np.asarray(probabilities), create, one, batch,
                   session.explain())


def _median(run: Any, times: int) -> float:
    """The median of `times` calls, after two that do not count."""
    run(), run()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return float(np.median(spent))


def show(outcome: Outcome, console: Console, count: int) -> None:
    """Print some digits, wrong ones first among them, and the figures."""
    wrong = np.flatnonzero(outcome.predictions != outcome.labels)
    right = np.flatnonzero(outcome.predictions == outcome.labels)
    chosen = [*right[:max(count - 1, 0)], *wrong[:1], *right[max(count - 1, 0):]][:count]
    try:
        SHADES.encode(console.encoding)
        shades = SHADES
    except UnicodeEncodeError:
        shades = PLAIN_SHADES
    console.print(Columns([_card(outcome, int(i), shades) for i in chosen], padding=(1, 3)))
    hits = int((outcome.predictions == outcome.labels).sum())
    console.print(Text(f"\n{hits} of {len(outcome.labels)} held-out digits right: {outcome.accuracy:.1%}",
                       style="bold"))
    one, many = 1e6 * outcome.one_image, 1e6 * outcome.per_image_in_batch
    console.print(Text(f"session made in {1e3 * outcome.create:.1f} ms; {one:.0f} µs for one image, "
                       f"{many:.0f} µs per image in a batch of {len(outcome.labels)}"))


def _card(outcome: Outcome, i: int, shades: str) -> Text:
    predicted, label = int(outcome.predictions[i]), int(outcome.labels[i])
    lines = drawing(outcome.images[i, 0], shades)
    verdict = f"{predicted}  {outcome.probabilities[i, predicted]:.0%}"
    if predicted == label:
        return Text("\n".join([*lines, f"{label} -> {verdict}"]))
    return Text("\n".join([*lines, f"{label} -> {verdict} (wrong)"]), style="red")


def drawing(image: np.ndarray, shades: str = SHADES) -> list[str]:
    """An image [8, 8] of 0 to 16 as eight lines of sixteen characters out of `shades`."""
    steps = np.clip(np.rint(image / 16 * (len(shades) - 1)), 0, len(shades) - 1).astype(int)
    return ["".join(shades[s] * 2 for s in row) for row in steps]
