"""From JUDGMENTS to scores, verdicts, consistency, agreement and rankings. Pure functions of tables."""
