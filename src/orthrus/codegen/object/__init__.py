"""From text to an address: object code, its cache on disk, and linking it into this process."""
