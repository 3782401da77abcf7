"""What MODEL means (`locate`), and how a model gets into the cache (`fetch`)."""
