"""What the compiler makes of generated kernels: registers, spills, shared memory, vector widths."""
