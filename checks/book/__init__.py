"""The book: chapters, and a page for each rule, instance, proof and release, as a static site.

Each build generates the source into a temporary directory from the registry of rules, the recorded
verdicts, the chapters and runs of the reference. `building` controls the build. Committed are the
text of a few pages (`pages`), their style (`theme`) and the list of pictures (`pictures`).
"""
