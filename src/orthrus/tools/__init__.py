"""What people use around a session: the `orthrus` command and what its subcommands are made of."""
