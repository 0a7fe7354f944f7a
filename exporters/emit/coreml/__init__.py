"""The Core ML emitter: one reader of the Graph, which builds a program in MIL and streams the payload into a package.

    coreml_target   what the table of targets knows: refusing, choosing numbers' widths, emitting
    program         the functions of the program: handlers by op, over `scope`
    attention, experts   the handlers that take more than a few lines
    scope           one function under construction: values, casts, constants
    matrices        how a stored matrix is written in MIL, and its bytes
    blobs           weight.bin
    package         the folder, and the only part of coremltools' exporter that is used
    limits          which values float16 cannot hold

`coremltools` is imported in `toolkit` alone, lazily.
"""
