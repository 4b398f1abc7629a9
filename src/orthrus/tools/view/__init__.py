"""`orthrus view`: a model's graph, run and memory in one HTML file."""
