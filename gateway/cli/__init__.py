"""The command line: `tensorgate VERB`.

main           arguments, and a function per verb
serving        serve: one process, or a supervisor and its worker (supervisor)
check          check: what is wrong with the models of a configuration
fetch          fetch: models of other machines into the cache, ahead
migrate        import: other servers' configurations
classic        import FILE: what XGBoost, LightGBM and scikit-learn have trained
client         models, health, usage: questions to a running gateway
model_call     call: inputs from arguments and files, answers as tables
api            sample, models --schema: what a gateway's API documents say of a model
shadow_report  diff: responses that differed from a shadow's
tune           tune: how models should batch, from recorded calls
batch_advice   what fits the arrivals and the times of one model
ops_help       ops: operators and their keys
"""
