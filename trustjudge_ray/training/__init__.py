"""What judgments are for in training: preference pairs and rewards."""
