"""What the Java store does on opening, version by version: a model that only reads (`preview`)."""
