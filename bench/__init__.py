"""Measurements, never assertions: what a node can sustain, what binds it, how others do."""
