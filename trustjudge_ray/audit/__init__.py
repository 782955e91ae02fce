"""Whether a judge can be trusted: it answers questions, judges answers to them, and both are held against an oracle."""
