-- Prints a run of wrk as one line of JSON, the last of its output.
done = function(summary, latency, requests)
    local failed = summary.errors
    print(string.format('{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "errors": %d}',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
        failed.connect + failed.read + failed.write + failed.status + failed.timeout))
end
