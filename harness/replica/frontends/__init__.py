"""How requests come to a replica that is not its own client: LoadGen, or HTTP."""
