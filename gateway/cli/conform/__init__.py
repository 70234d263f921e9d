"""`tensorgate conform`: what a running server answers, held against what its protocol promises.

asking   the two clients: HTTP and gRPC, bytes in and bytes out
judging  a suite's cases asked one by one -> verdicts
against  two servers asked the same, or one what was recorded
report   verdicts for people, as JSON and for JUnit; page: as one HTML page
"""
