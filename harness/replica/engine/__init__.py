"""A server of the user's own inside a replica: started, asked over HTTP, measured at the client, ended."""
