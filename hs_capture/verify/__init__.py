"""Did the hook fire, and are the files right? `hs-capture verify` answers from evidence.

Evidence is what a server left in the dump directory, what the capture files hold, how the package
is installed, and which servers run. Nothing here imports SGLang. With `--model`, and only then,
torch applies the model's own head to the states, and a server may be asked what it makes of them.
"""
