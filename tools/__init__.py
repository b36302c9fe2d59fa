"""The command line: `pack-dataset` and `headway <command>`."""
