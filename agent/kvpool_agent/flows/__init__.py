"""One use case each: attach, lookup, load, store, finished requests, warm-up, and answering other members."""
