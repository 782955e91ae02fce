"""Where the inputs that break other systems, and the reference program's numbers, lie."""

from pathlib import Path

DATA = Path(__file__).parent / "data"


def shared(name: str) -> Path:
    """A file or folder of the project's test inputs, for example `inputs/files` or `oracle/tiny`."""
    path = DATA / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: test input is missing from tests/data")
    return path
