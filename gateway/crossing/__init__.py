"""How processes of one gateway work together.

shared_state   memory that all doors share: counts of connections
role           what a process of the group is, and what it inherits
"""
