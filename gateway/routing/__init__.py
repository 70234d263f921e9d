"""Which model answers.

router          a name that a caller uses -> a version
route           a configured public name: targets by weight, rules, fallback
shadow          copies of a route's requests, sent to other models
response_diff   two responses compared, tensor by tensor
mirrored_call   copies of calls that another server answers, unread
shadow_samples  the file of responses that differed
"""
