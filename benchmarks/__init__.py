"""Speed and memory of the package compared with peers in the same run; see README.md."""
