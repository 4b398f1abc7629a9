"""The `orthrus` command: `main`, a module per verb, and what verbs share."""
