"""Forests of decision trees: rows of features in, per row and target the sum, least or greatest leaf out.

Thresholds are replaced by ranks. Every row's features are ranked once among the thresholds they meet, by
binary search; a test is then one comparison of integers, and a node is one 32-bit word: the threshold's rank
above, the column of ranks it is for in the low `bits`. A *column* is a feature together with where its NaN
goes.

A vector's lanes are trees. A group of as many trees walks down together for one row, whose ranks lie in
registers where they fit: the first levels choose between whole vectors, each further level is one gather.
Trees are padded to complete ones, so that a node's children follow from its place; deep or ragged trees are
complete for some levels and continue in a list of linked nodes. Lanes add up their own leaves and are joined
at the end, so that the order of a sum depends on the forest alone.

Trees that do not fill a vector are walked as they are, by several rows side by side.

`packing` lays a forest out, `walk` is the kernel that goes down its trees, `few` the one for few trees,
`scores` what comes of the leaves.
"""
