"""A night's run, compared with the last one, for `ray job submit`: `python jobs/nightly.py CONFIG [key=value ...]`."""

import sys

from trustjudge_ray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["nightly"]
    main()
