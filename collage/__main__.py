"""``python -m collage``."""

from collage.cli.main import main

if __name__ == "__main__":
    main(prog_name="collage")
