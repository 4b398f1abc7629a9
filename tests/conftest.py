"""Tests change what sessions are made of, which a kept one would not show: it is left to those that ask."""

import os

os.environ.setdefault("ORTHRUS_CACHE_SESSIONS", "0")
