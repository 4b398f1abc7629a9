"""Plan in, outputs out: feeds are checked, steps executed, results handed over."""
