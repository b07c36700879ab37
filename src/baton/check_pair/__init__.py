"""`baton check-pair`: what two models are to each other, told before anyone spends GPU hours on them."""
