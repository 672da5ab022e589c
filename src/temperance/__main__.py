"""python -m temperance: the command line, for launchers such as torchrun."""

import sys

from temperance.cli import program

if __name__ == "__main__":
    sys.exit(program())
