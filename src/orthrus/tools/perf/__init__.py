"""How fast a model runs: `orthrus perf-test`, its flags, measurements and reports."""
