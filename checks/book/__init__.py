"""The book: chapters, and a page for each rule, instance, proof and release, as a static site.

Its source is made anew each time, into a directory that is removed in the end: from the registry of
rules, the verdicts on record, the chapters and runs of the reference. `building` puts it together;
what is committed is the text of a few pages (`pages`), their style (`theme`) and the list of
pictures (`pictures`).
"""
