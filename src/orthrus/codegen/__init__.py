"""Kernels as machine code: written by Python as LLVM assembly, compiled once, kept on disk.

In: a `Spec`, which is a template with its parameters, and a `Machine`. Out: the address of a function
`kernel(args, lo, hi, scratch)` in this process that does the work items from `lo` to `hi`. Sizes and strides
are arguments, so that one kernel serves many shapes. Results do not depend on how the items are divided.

`machines`: what is written for. `machine` describes processors, `detect` says which one this is (`riscv` on
RISC-V), `executable` is memory that code runs from.

`write`: what kernels are written in. `emit` writes LLVM assembly, `body` is the function a kernel is,
`template` names kernels and their arguments; `expr` holds elementwise trees, `trace` makes them of
operators' definitions; `vmath`, `trig`, `arithmetic` and `convert` are functions of vectors, `tile` the
register tile under products and convolutions. `origin` follows what addresses lead into, `bounds` writes
kernels that look there, `notes` is what those are given and say. On RISC-V `rvv_intrinsics` and
`spacemit_matrix` write instructions that LLVM has in other forms only.

`object`: `build` makes object code, `link` brings it into this process, `cache` keeps it on disk; `library`
uses them to answer a `Spec` with an address, `override` puts edited kernels in their place, `riscv_cost`
counts what a kernel has become.

`runtime`: `scheduler` is the code that runs a program of steps, `threads` the pool it divides them over,
`entry` makes a program callable from Python, `fastcall` does a whole run from a dict of arrays to a list,
`call_kernel` calls one kernel.

`emulate`: kernels for another architecture run here, in workers, small programs under qemu's user emulation.
`shared` is the memory both sides see at the same address, `worker` the program, `system` and `illegal` what
it needs of the machine, `elf` the file it starts from; `emulator` finds qemu, starts workers and hands them
lists of calls.

`kernels`: each beside the planning of its sizes, tiles and packing.
  elements     `loops` (elementwise), `transpose`, `gather`, `quantize_range`
  rows         `reduce`, `top_k`, `softmax` and `norm` in the frame of `rows`
  products     `gemm`; `amx` on a matrix unit; `int8`: of bytes
  images       `conv`; `pool`, `resize` and `grid_sample` in the frame of `sample`; `nms`
  sequences    `attention`: of many queries, of few, and rotary embedding; `rnn`
  ensembles    `tree_ensemble`
"""
