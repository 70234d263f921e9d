"""Which model answers: names, routes, copies of requests and how their answers compare."""
