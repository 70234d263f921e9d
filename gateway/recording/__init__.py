"""Calls as they came and were answered, kept in files: to be played again, to the same server or to another.

record.py     one recorded call, as a line of the file has it
recorder.py   takes calls up on the event loop
comparison.py what differs between two answers
files.py      writes them, in a thread: rotating, bounded
"""
