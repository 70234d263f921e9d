"""Who may ask for what, and how often.

authorizer  every call's checks, in order; built from the configuration
auth        who calls: API keys, tokens, certificates, the administrator's key
access      which models and routes a caller may use
rate_limit  how much a caller may ask for
shares      whose share of the devices a call is answered from
"""
