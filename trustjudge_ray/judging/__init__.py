"""What is asked, of which labels, about whom, in which tokens, and who is asked."""
