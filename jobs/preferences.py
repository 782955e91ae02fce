"""Bulk labelling of preference pairs, for `ray job submit`: `python jobs/preferences.py CONFIG [key=value ...]`."""

import sys

from trustjudge_ray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["preferences"]
    main()
