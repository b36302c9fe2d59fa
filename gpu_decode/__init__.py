"""Encoded payloads → training tensors: decoders, geometry-consistent augmentation, device transfer."""
