"""A session's profile file, in onnxruntime's form.

The file is written by `end`, which a session that is dropped calls too; it is a `profiling.Trace`.
"""

from __future__ import annotations

import logging
import time

from ..profiling.trace import Trace


class ProfileFile(Trace):
    """Collects events until it is ended, once."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        now = time.time()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
        self.path = f"{prefix}_{stamp}_{int(now * 1000) % 1000:03d}.json"

    def end(self) -> str:
        """Write the file and answer its name; "" where it was written before. A file that cannot be written
        raises nothing, as in onnxruntime, and is reported in the log."""
        if not self.close():
            return ""
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(self.text())
        except OSError as error:
            logging.getLogger("orthrus").warning("the profile cannot be written: %s", error)
        return self.path
