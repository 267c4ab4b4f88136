"""kvpool's own authorities and what they sign: one for the webhook's server, one for the peers of all pools.

`plan` and `peers` say what has to be, from the time and what is there; `apply` brings the cluster to it. `authority`
and `requests` are bytes in and out: the signer needs no more.
"""
