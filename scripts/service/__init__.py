"""What `bench_service` measures: a module in a service, called from many threads, loaded by many processes."""
