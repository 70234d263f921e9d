"""One loaded version at work: its queue, batches, workers, sequences, deadlines, response cache."""
