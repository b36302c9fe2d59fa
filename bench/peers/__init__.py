"""The same batches from other loaders: one file a peer, each written as its competent user would write it.

This package imports nothing of headway's, so that a peer runs in an environment of its own that holds the peer, torch and
the decoders, and nothing else. `headway_loader` is the one exception, and runs in headway's environment.
"""
