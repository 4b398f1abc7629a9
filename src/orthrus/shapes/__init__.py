"""Sizes that are not known yet: integers that remember where they came from."""
