"""Replicas of one log compared: rows and parts (`rows`), what it comes to (`summary`), checksums (`digests`)."""
