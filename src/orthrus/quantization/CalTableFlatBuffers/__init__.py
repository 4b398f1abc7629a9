"""TensorRT's calibration table as flatbuffers' tables: a TrtTable holds KeyValues."""
