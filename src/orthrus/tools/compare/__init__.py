"""Where two sides of a model part, and whose fault it is."""
