"""Adapters: our sandboxes as classes of the frameworks that people train and evaluate agents with. One module each.

Each needs its framework, which is an extra (`pip install 'dutyfree[inspect]'`), and is imported when it is used.
What they share is `rollout`: one substrate per process, one sandbox per rollout, and the words for a failure.
"""
