"""What kernels are written in: LLVM assembly, templates, expression trees, and functions of vectors."""
