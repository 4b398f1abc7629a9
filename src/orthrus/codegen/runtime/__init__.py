"""What runs beside kernels: the scheduler, threads, and ways into generated code from Python."""
