"""Reading a segment: frames, the walk over them, resynchronisation after damage, row values."""
