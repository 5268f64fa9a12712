"""Stream readers: a store on disk, or a live group."""
