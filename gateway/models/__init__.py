"""Which models are configured, loaded and serving.

catalog         sources of configurations: the YAML file, repositories
remote_catalog  repositories that lie elsewhere
listed_catalog  the list of models that a caller sent, in front of a catalog
model_files     a model's files, on this machine or elsewhere
model_folder    a model on disk: version folders, fingerprints, uploads
model_spec      a configuration, fitted to the loaded model; also signatures, warmup_samples
loader          from disk to memory
verification    whether files are what somebody vouches for, before they are loaded; also file_digest
meters          what is counted of each loaded version
model_state     one model: its configuration, its versions, their status
loaded_models   all loaded versions, and the snapshot that requests see
repository      which to load and unload: at start, by callers, by polling, by a reload
changes         what another configuration would change
reload          carries that out while the gateway serves
"""
