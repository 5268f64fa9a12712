"""What is lost of a log: damaged and missing places, and what indexes and queues know of them."""
