"""Random graphs, operators and mutated models against onnxruntime and the operators' own definitions.

`python -m tests.fuzz --minutes 10` runs all three kinds; `tests/test_fuzz.py` a few seeds of each. The pieces:
families of applications (`elements`, `movement`, `layers`, `contrib`, with `cases` and `draw`), larger graphs
(`graphs`, `steps`, `patterns`), small ones around any operator (`applications`, `small`), the verdict
(`judge`, `known`), failures made small (`shrink`), changed models (`mutations`), processes (`search`).
"""
