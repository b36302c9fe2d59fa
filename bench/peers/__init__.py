"""One file a peer: the same batches from other loaders, each written as its competent user would."""
