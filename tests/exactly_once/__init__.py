"""A streaming writer and a streaming tail over a group of real nodes, while leaders and the Spark driver are killed."""
