"""A leaderboard run for `ray job submit`: `python jobs/leaderboard.py CONFIG [key=value ...]`."""

import sys

from trustjudge_ray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["run"]
    main()
