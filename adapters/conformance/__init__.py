"""What a dialect's conformance cases are made of; the cases themselves lie with each dialect, in its `conformance`.

case          a request as bytes, the reply, and a case: requests with what their replies must be
expectations  what a reply must be: status, headers, body by bytes or by a pattern
patterns      documents with gaps, and what differs between one and a value
http_calls    calls over HTTP, and what their replies mostly are
plain         protobuf messages as plain values, to be compared by patterns
"""
