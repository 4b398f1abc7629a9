"""Every operator, said once: what it takes, what it means, and from which schema version on.

The modules here are read when somebody first asks for an operator; see `define.find`.
"""

from .define import Op, defined, find

__all__ = ["Op", "defined", "find"]
