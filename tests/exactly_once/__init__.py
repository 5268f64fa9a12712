"""Streams write and tail a group of real nodes, while leaders and the Spark driver are killed."""
