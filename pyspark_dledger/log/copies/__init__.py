"""Compares the copies of replicas: which are intact, which are damaged, and by which evidence."""
