"""Find a model by its name (`locate`), and download a model into the cache (`fetch`)."""
