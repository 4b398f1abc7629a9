"""RISC-V with vectors, as SpacemiT's processors have it: where its generated kernels run.

On such a processor no worker is needed: there kernels are code like any other, which `codegen.link` brings
into this process as it does on the CPU provider's machines. Elsewhere they run in a worker, a small program
under qemu's user emulation: `shared` is the memory both sides see at the same address, `worker` the program,
`elf` the file it starts from, and `emulator` finds qemu, starts the worker and hands it lists of calls.
"""
