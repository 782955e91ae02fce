"""From the tables of a run folder to what a person reads."""
