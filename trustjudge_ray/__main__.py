"""`python -m trustjudge_ray` is the command `trustjudge`."""

from trustjudge_ray.cli import main

main()
