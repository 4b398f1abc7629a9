"""Random graphs, operators and mutated models against onnxruntime and the operators' own definitions.

`python -m tests.fuzz --minutes 10` runs all three kinds, `tests/house/test_fuzz.py` a few seeds of each.

Families of applications are in `elements`, `movement`, `layers` and `contrib`, with `cases` and `draw`; large
graphs in `graphs`, `steps`, `contractions` and `patterns`; small ones around any operator in `applications`
and `small`; the verdict in `judge` and `known`; failures are made small in `shrink`, models changed in
`mutations`, processes kept by `search`.
"""
