"""`python -m featherback` is the command `featherback`."""

from featherback.cli import main

if __name__ == "__main__":
    main()
