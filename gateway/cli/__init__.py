"""The command line: `tensorgate VERB`."""
