"""Models compiled ahead of time: object files, libraries, programs and wheels, made by `emit`."""

from .emit import FORMS, emit

__all__ = ["FORMS", "emit"]
