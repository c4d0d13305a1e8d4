"""`python -m dutyfree`: the command line, where `dutyfree` is not on PATH."""

import sys

from dutyfree.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
