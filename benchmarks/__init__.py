"""Speed and memory of the package against peers measured in the same run; see README.md."""
