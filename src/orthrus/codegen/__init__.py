"""Kernels as machine code: written by Python as LLVM assembly, compiled once, kept on disk.

In: a `Spec`, which is a template with its parameters, and a `Machine`. Out: the address of a function
`kernel(args, lo, hi, scratch)` in this process that does the work items from `lo` to `hi`. Sizes and strides
are arguments, so that one kernel serves many shapes. Results do not depend on how the items are divided.

Planning: `sizes` lets functions of integers plan for dimensions that are not known yet.

Writing: `machine` describes what is written for, `emit` writes LLVM assembly, `template` names kernels and
their arguments; `origin` follows what addresses lead into, `bounds` writes kernels that look there, and
`notes` is what those are given and say.
`expr` holds elementwise trees, and `trace` makes them of operators' definitions. `vmath`,
`trig`, `arithmetic` and `convert` are functions of vectors.

Compiling: `build` makes object code, `link` brings it into this process, `cache` keeps it on disk; `library`
uses them to answer a `Spec` with an address.

On RISC-V: `riscv` tells which such machine this is, `scalable` and `ime` write instructions that LLVM has in
other forms only, and `listing` counts what a kernel has become.

Running: `drive` is the code that runs a program of steps, `threads` the pool it divides them over, `entry`
makes a program callable from Python, `quick` does a whole run from a dict of arrays to a list, `once` calls
one kernel.

The kernels, each beside the planning of its sizes, tiles and packing:
  elements     `loops` (elementwise), `transpose`, `gather`
  rows         `reduce`, `select` (the k best), `rows` (softmax, and the walk over rows), `norm`
  products     `gemm` and the register tile under it, `tile`; `amx` on a matrix unit
  images       `conv`, `winograd`, `depthwise`; `pool` and `resize` in the frame of `sample`
  sequences    `attention`, `attention_few`, `attention_parts` under them, `rotary`; `rnn`
  ensembles    `trees`
"""
