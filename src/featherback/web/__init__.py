"""What a browser or another program reaches over HTTP: the server of models and the studio page."""
