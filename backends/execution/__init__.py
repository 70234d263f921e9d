"""What is around every backend: operators, batches joined and split, copies to a device and back."""
