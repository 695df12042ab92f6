"""What is done before a plan can be made: lowering, timing kernels and disks, and plans kept in files."""
