"""What imports torch: level 1 of the memory model, and the runs that are measured."""
