"""``python -m turntape``, and the ``turntape`` command."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="turntape")
