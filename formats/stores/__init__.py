"""Where the files of a set lie: local disk, object stores, HTTP."""
