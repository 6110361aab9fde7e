"""The public API: what the command line does, as functions with typed keywords, on files or on data in memory.

Importing it loads neither torch nor pyarrow: each function imports what it needs.
"""
