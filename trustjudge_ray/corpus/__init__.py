"""From users' files to RESPONSES; what cannot be read goes to QUARANTINE."""
