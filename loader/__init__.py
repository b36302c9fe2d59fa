"""Records → batches in a known order: plan, windows, fetch, buffers, prefetch, state, faults, stats."""
