"""What commands tell of plans and of training: in numbers for machines, in words for people."""
