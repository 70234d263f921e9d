"""The command line: `tensorgate VERB`.

main           arguments, and a function per verb
serving        serve: one process, or a supervisor and its worker (supervisor)
check          check: what is wrong with the models of a configuration
migrate        import: other servers' configurations
client         models, call, health: questions to a running gateway
shadow_report  diff: responses that differed from a shadow's
ops_help       ops: operators and their keys
"""
