"""Products with weights of 2, 4 or 8 bits in blocks of K that share a scale, read as they are stored."""
