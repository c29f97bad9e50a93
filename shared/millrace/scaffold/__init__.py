"""A new app in a repository of its own: complete, small, and to be changed."""
