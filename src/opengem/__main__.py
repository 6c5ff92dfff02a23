"""`python -m opengem`."""

from opengem.cli import main

if __name__ == "__main__":
    main()
