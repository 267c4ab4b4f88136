"""The read-only page of a pool: what the controller has seen of its members, as HTML made from it alone.

Pure: the controller hands in what it knows and serves what comes back. Agents are believed nothing here: every word of
theirs is escaped, and the page has no script and asks for nothing, so there is nothing that such a word could start.
"""
