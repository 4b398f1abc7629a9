"""The rules, by family; the order in which they run is in `optimize.PASSES`."""
