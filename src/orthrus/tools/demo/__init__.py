"""The digits that come with the package, classified and drawn."""
