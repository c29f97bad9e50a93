"""The next item of a visit, from the sessions of others that went the same way (VMIS-kNN)."""
