"""What people use around a session: the `orthrus` command in folders by what one does; and, by the names that
onnxruntime.tools has, modules that change or describe model files."""
