"""The `orthrus` command, as a script and as `python -m orthrus`, where what it is made of is installed.

In: a command line. Out: what the command does; without typer and rich, which nothing but the command line
needs, a line that says what to install, and exit code 1.
"""

from __future__ import annotations

import sys

from .shown import tell


def main() -> None:
    """Run the command line."""
    try:
        from .tools.cli.main import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "orthrus":
            raise
        tell(f"the orthrus command needs {missing}, which is not installed; the package itself does not: "
             "pip install typer rich", err=True)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
