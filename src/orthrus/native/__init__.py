"""Models for programs without Python: packages, the runtime in C, what is made of them."""
