"""The kernels: templates, each beside the planning of its sizes, tiles and packing."""
