"""``python -m lightning_lift`` is the console script ``lightning-lift``."""

from lightning_lift.cli import main

if __name__ == "__main__":
    main()
