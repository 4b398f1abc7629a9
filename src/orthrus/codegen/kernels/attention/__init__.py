"""Attention kernels: queries, keys and values by strides in, mixed values out; scores never leave the cache.

`plan` says which kernel serves given sizes, and with which arguments. `many` is for many queries: a work item
takes one head of keys (with every query head that shares it, or some of their rows), copies blocks of its
keys, transposed, and of its values into scratch and runs register tiles over them, with the softmax running
on from block to block. `few` is for one query or a handful over a long cache: it reads keys and values where
they lie, once, and copies them to a grown cache on the way if asked. `rotary` turns queries and keys by their
positions before. `parts` is what these are made of.

Row i of the queries sees the keys from i + shift - left to i + shift + right, and none from the end on; what
a row gives that sees none, `Empty` says. Storage is float32 or half precision, arithmetic float32; sums over
keys run in blocks, and a weight below e^-87 counts as 0.
"""
