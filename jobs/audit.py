"""An audit for `ray job submit`: `python jobs/audit.py CONFIG [key=value ...]`."""

import sys

from trustjudge_ray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["audit"]
    main()
