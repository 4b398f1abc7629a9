"""Which providers take results of tuning: those that a session is handed, and those in a model's metadata.

In: results in onnxruntime's form, a list of maps with `ep`, `validators` and `results`. Out: each handed to
the provider that it names; one that nobody takes is an error, or a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import Fail
from ..ir import No
from ..providers.base import ExecutionProvider

log = logging.getLogger("orthrus")

KEY = "tuning_results"
"""What a model's metadata calls them."""


def found(providers: Sequence[ExecutionProvider]) -> list[dict[str, Any]]:
    """What every provider that is tuned knows."""
    return [results for provider in providers if (results := provider.tuning_results()) is not None]


def hand_over(providers: Sequence[ExecutionProvider], given: Sequence[Mapping[str, Any]], strict: bool,
              enable: bool = False) -> None:
    """Give each provider what is its own. `enable`: they go by it whether their options say so or not. Raises
    RuntimeError for what cannot be taken, where `strict`, else that is a warning; KeyError for what has no
    ep, validators or results."""
    by_name = {provider.name: provider for provider in providers}
    checked = [(each["ep"], each["validators"], each["results"]) for each in given]
    for i, (ep, validators, results) in enumerate(checked):
        provider = by_name.get(ep)
        if provider is None:
            refused = f"Cannot find execution provider {ep}"
        else:
            why = provider.load_tuning_results(validators, results, enable)
            if why is None:
                continue
            refused = f"Invalid TuningResults (index={i}). {why.reason}"
        if strict:
            raise RuntimeError(refused)
        log.warning("%s", refused)


def take_from(metadata: Mapping[str, str], providers: Sequence[ExecutionProvider]) -> None:
    """Hand over what a model's metadata holds, if anything. Raises Fail where that is no such list."""
    text = metadata.get(KEY)
    if text is None:
        return
    given = _read(text)
    if isinstance(given, No):
        raise Fail("Tuning results stored in the model file cannot be parsed", found=given.reason,
                   expected="a list of maps with ep, validators and results",
                   cure="orthrus.tools.offline_tuning embeds such")
    hand_over(providers, given, False, True)


def _read(text: str) -> list[dict[str, Any]] | No:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        return No(f"{text[:80]!r}: {error}")
    whole = isinstance(given, list) and all(
        isinstance(each, dict) and {"ep", "validators", "results"} <= each.keys() for each in given)
    return given if whole else No(repr(text[:80]))
