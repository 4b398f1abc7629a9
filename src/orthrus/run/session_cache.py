"""Sessions kept on disk: what was made of a model once is there again at once.

In: a model's file or bytes, and how its engine is to be made. Out: an engine. Where the whole model is one
part of generated code and is always run with the same shapes, that part's package is kept (`keeping`), and
the next engine is made of it alone (`kept`): nothing is loaded, optimized, placed, or packed, and nothing
that does so is imported. What the package has no answer to (other shapes, an explanation, a profile) comes
from the whole engine, which is then made of the model. Nothing is answered before all of the model has been
found to be what the package was made of; where it is not, the whole engine answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..codegen.object import cache
from .session_key import VARIED, marker, name_of

if TYPE_CHECKING:
    from .config import Config


def engine_for(source: Any, config: Config) -> Any:
    """The engine of a model, from what was kept of it where there is something. Raises what `Engine` does."""
    source, name = name_of(source, config)
    seen = None
    if name is not None:
        seen = cache.load([marker(name)]).get(marker(name))
        if seen is not None and seen != VARIED:
            from .kept import restored

            kept = restored(name, source, config)
            if kept is not None:
                return kept
    from .engine import Engine

    start = time.perf_counter()
    engine = Engine(source, config)
    if name is not None and seen != VARIED:
        from .keeping import watch

        watch(name, seen, engine, source, time.perf_counter() - start)
    return engine
