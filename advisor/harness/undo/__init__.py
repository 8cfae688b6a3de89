"""No harm: what the script changes is copied aside first, and put back when the run is over."""
