"""What providers share that hand whole parts to an engine which is not this package's."""
