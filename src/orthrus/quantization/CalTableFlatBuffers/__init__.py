"""The binary form of calibration tables that TensorRT reads: a table of texts by texts, as a FlatBuffer."""
