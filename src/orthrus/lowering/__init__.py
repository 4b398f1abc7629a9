"""Lowering: nodes and the shapes of their inputs become steps over tensors, which generated kernels run.

In: a `Part` and concrete shapes, or open ones. Out: kernels with their arguments, in order, and the memory
they work in. Every provider that generates code stands on this stage.

  claims        which nodes go into compiled parts
  lower, rules  what each operator becomes; `tensor`, `walk` and `elements` are what rules are written in
  memory        places in one arena for the buffers of a part
  plans         what a run needs: a plan per tuple of input shapes; `formula` makes them for further shapes
  shaped_part   a part at run time, whoever compiled it; `learner` finds formulas beside runs
  native        such a part of generated kernels; `device` is where these run, `package` one compiled ahead
  report        what a part holds, for people; `attribution` says which nodes a step works for
"""
