raise ImportError("the configuration loads the model's: a driver must not import it")
