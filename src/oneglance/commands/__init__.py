"""One file a command. What they share: ``options`` (names, help), ``opening``, ``terminal`` and ``pairs`` (timing).

Nothing here imports torch when it is imported, so that ``oneglance COMMAND --help`` is quick.
"""
