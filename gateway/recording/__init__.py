"""Calls as they came and were answered, kept in files: to be played again, to the same server or to another.

record.py     one recorded call, as a line of the file has it
recorder.py   takes calls up on the event loop
lines.py      makes a line of each
comparison.py what differs between two answers
backlog.py    calls that wait for a place, and the thread that takes them there
files.py      that place is a file: rotating, bounded
events.py     that place is an HTTP address: CloudEvents
"""
