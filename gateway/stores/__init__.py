"""Models that lie on other machines: what a URL of the YAML holds is listed, fetched into a cache, and used from there.

A listing costs little and downloads nothing: names, sizes, and a digest or tag of each file. What of it a version needs
is a tree, whose key is a digest of that, so that equal trees are fetched once, and changed ones are other trees. A tree
appears in the cache whole, or not at all, and stays for as long as somebody has a lease of it.

listing.py   what is there: files, versions, trees
errors.py    what stores fail with
http.py      requests of the web, which no redirect leads astray
objects.py   s3://, gs://, az://            web.py      https://
hub.py       hf://                          registry.py oci://          tracking.py  mlflow://
cache.py     the disk: trees, leases, limits
fetching.py  one tree into the cache: several files at a time, each resumed where it broke off
store.py     what every kind of store can do
stores.py    all of it: a location -> versions -> folders of this machine
"""
