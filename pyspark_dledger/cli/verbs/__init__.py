"""The verbs of `dledger`: each module has a verb's arguments (`add_arguments`) and its function (`run`)."""
