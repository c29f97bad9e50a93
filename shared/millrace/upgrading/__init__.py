"""A new version of an app in place of the one that runs: checked, one writer at a time, a way back."""
