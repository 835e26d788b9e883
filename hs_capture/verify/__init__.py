"""Did the hook fire, and are the files right? `hs-capture verify` answers from evidence.

Evidence is what a server left in the dump directory, what the capture files hold, how the package
is installed, and which servers run. Nothing here asks a server, imports SGLang or needs torch.
"""
