"""What `calibrate` is made of: a model that is looked at while it runs, counts by bins, ranges and their
files."""
