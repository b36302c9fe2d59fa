"""Other people's datasets, one adapter a file; `open_source` builds the one a `SourceSpec` names."""

from .registry import KINDS, SourceSpec, open_source

__all__ = ["KINDS", "SourceSpec", "open_source"]
