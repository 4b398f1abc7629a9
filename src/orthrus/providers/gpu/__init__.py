"""What the providers for GPUs have in common: they differ in the driver that they call."""
