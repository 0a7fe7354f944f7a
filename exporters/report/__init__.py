"""The full quality report: a bundle next to its source, or to another bundle, on texts that nothing is calibrated on.

texts        the texts, and where they are from
models       what can be measured: a runtime with a bundle, the reference interpreter with a checkpoint
"""
