"""Judging of model answers with LLM judges on Ray: distributions, consistency, rankings."""

__version__ = "0.1.0"
