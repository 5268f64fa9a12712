"""Puts one intact log together from damaged replicas, which are only read."""
