"""The commands of `trustjudge`, each a thin function: what a test would want to call lies in `runs` and its like."""
