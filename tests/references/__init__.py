"""Every model in plain torch, for results to be held to and times to be compared with; imports nothing of ours."""
