"""The two queries of the DEBS 2015 Grand Challenge: frequent routes and profitable areas of taxi trips."""
