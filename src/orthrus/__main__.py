"""`python -m orthrus`: the `orthrus` command, where no script of it is on the path."""

from .tools.cli.main import main

if __name__ == "__main__":
    main()
