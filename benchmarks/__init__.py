"""What Orthrus is measured by: conformance, latency, import time, call overhead, leaks. Run from the
repository's root."""
