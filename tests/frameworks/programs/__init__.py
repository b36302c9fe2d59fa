"""What the ranks run: one training program a framework, as its user would write it."""
