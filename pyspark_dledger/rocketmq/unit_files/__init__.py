"""Writers of ConsumeQueue files and IndexFiles."""
