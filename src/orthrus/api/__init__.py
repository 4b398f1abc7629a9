"""All that is shaped like onnxruntime: sessions, options, values, bindings."""
