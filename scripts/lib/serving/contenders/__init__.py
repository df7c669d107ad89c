"""The contenders. Each module imports what it needs when it is opened.

None uses more threads than it is given, ends an answer at an end token, or keeps prefixes of prompts: requests that
are measured again would find themselves in the cache.
"""
