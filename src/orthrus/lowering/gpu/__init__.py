"""Lowering for GPUs: the same walk over a part's nodes, with rules that call kernels of `codegen.triton`.

  lower, rules  what each operator becomes; rules that write no kernel themselves are the CPU's
  walks         how tensors lie over the index spaces that kernels walk, and the trees at kernels' ends
  elements      the steps that write a tree, or a copy
  plan          kernels, their packed arguments, and what depends on where arrays lie
  part          such a part at run time
"""
