"""Where training starts: the paper's initialisations, in one call, on any model made of known layers."""
