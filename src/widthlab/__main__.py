"""`python -m widthlab`: the command line."""

from widthlab.cli import main

if __name__ == "__main__":
    main()
