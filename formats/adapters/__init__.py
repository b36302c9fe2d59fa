"""Other people's datasets, one adapter a file; `open_source` builds the one a `SourceSpec` names."""
