"""Frameworks that launch ranks, as real two-process runs on this machine's CPU."""
