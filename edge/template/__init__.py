"""Jinja templates, interpreted: with a bound on work and memory, and strings that know what the template itself wrote.

A template is a program from elsewhere. jinja2 parses it; nothing of it becomes Python code and nothing is computed
before it is rendered. `work` bounds what a rendering does, `text` has the strings and `strings` their methods, `values`
what may be done with values, `filters` and `tests` what goes by those names, `statements` and `expressions` the syntax
tree, `template` the whole.
"""
